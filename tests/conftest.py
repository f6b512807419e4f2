import signal

import pytest
import torch

from jacnorm.engines.rules import maxpool, one_channel

# A shell that runs the tests in the background has Ctrl-C ignored, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def fast_paths(monkeypatch):
    """Rules that have a faster way for large inputs take it for small ones, too."""
    for room in (maxpool, one_channel):
        monkeypatch.setattr(room, "WORTHWHILE", 0)


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)
