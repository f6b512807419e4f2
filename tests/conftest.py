import os
import signal
from pathlib import Path

import pytest
import torch

from jacnorm.engines import lowered
from jacnorm.engines.rules import maxpool, one_channel
from jacnorm.pytorch import half

DEVICE = os.environ.get("JACNORM_DEVICE")  # as in `make test-device JACNORM_DEVICE=cuda`
# About the CPU, processes, files or the memory of this machine; trainers choose a device themselves.
ABOUT_THE_CPU = {
    *("lab", "integrations", "test_autocast.py", "test_ddp.py", "test_docs.py", "test_examples.py"),
    *("test_import.py", "test_long_training.py", "test_memory.py", "test_notebooks.py", "test_sharded.py"),
    *("test_stored.py", "test_wheel.py"),
}

# A shell that runs the tests in the background has Ctrl-C ignored, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure():
    """The default device is set before any test makes a tensor, those at the top of files included."""
    if DEVICE is None:
        return
    try:
        torch.zeros(1, dtype=torch.float64, device=DEVICE).sum().item()
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise pytest.UsageError(
            f"JACNORM_DEVICE={DEVICE} cannot run the tests, which need float64 there: {str(error)[:100]}"
        ) from error
    torch.set_default_device(DEVICE)


def pytest_collection_modifyitems(items):
    for item in items:
        if not ABOUT_THE_CPU.isdisjoint(item.path.relative_to(Path(__file__).parent.parent).parts):
            item.add_marker(pytest.mark.cpu)


@pytest.fixture
def fast_paths(monkeypatch):
    """Rules that have a faster way for large inputs take it for small ones, too."""
    for room in (maxpool, one_channel):
        monkeypatch.setattr(room, "WORTHWHILE", 0)


@pytest.fixture
def half_pays(monkeypatch):
    """Sweeps in half precision, whatever the machine and however small the layers."""
    monkeypatch.setattr(half, "_why_not", lambda *_: None)
    monkeypatch.setattr(lowered, "LEAST", 1)
    half._tried.cache_clear()
    yield
    half._tried.cache_clear()


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
