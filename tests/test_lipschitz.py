"""The one-line answer is that of linearize and the estimators, for batches of any size."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import jacnorm as jn
from jacnorm.lab.nets import MLP
from jacnorm.pytorch.progress import Progress


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)).double()


@pytest.fixture
def x():
    return torch.randn(11, 4, dtype=torch.float64)


@pytest.mark.parametrize("max_bytes", [1, 5000, 1 << 30])
def test_the_dense_norm(model, x, max_bytes):
    model.eval()
    J = jn.linearize(model, x)
    A = J.dense().detach()
    L = jn.local_lipschitz(model, x, max_bytes=max_bytes)
    assert isinstance(L, jn.Estimate)
    torch.testing.assert_close(L.sigma, torch.linalg.matrix_norm(A, 2))
    torch.testing.assert_close(J.jvp(L.v), L.sigma[:, None] * L.u)
    assert L.converged.all()
    assert not L.sigma.requires_grad
    torch.testing.assert_close(jn.local_lipschitz(model, x, norm=1).lower, A.norm(dim=1).amax(1))
    signs = jn.local_lipschitz(model, x, norm="inf")
    assert signs.p == float("inf")
    assert signs.v.shape == x.shape
    torch.testing.assert_close(signs.lower, jn.induced_norm(J, "inf").lower)


def test_what_holds_near_x_and_only_there():
    """Around x = -1 a ReLU is constant; the constant over a ball that reaches 0 is 1."""
    model = nn.ReLU().eval()
    assert jn.local_lipschitz(model, -torch.ones(1, 1)).sigma == 0
    assert jn.local_lipschitz(model, torch.ones(1, 1)).sigma == 1
    assert "NOT A CERTIFICATE" in jn.local_lipschitz.__doc__


def test_in_training_the_batch_stays_whole(model, x):
    """Its statistics would change."""
    expected = jn.spectral_norm(jn.linearize(model, x)).sigma
    torch.testing.assert_close(jn.local_lipschitz(model, x, max_bytes=1).sigma, expected)
    torch.testing.assert_close(jn.local_lipschitz(model.forward, x).sigma, expected)
    model.eval()
    model[1].train()
    torch.testing.assert_close(jn.local_lipschitz(model, x).sigma, expected)


def test_batch_norm_without_running_statistics_keeps_the_batch_whole(x):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(x[0].numel(), track_running_stats=False), nn.ReLU())
    expected = jn.spectral_norm(jn.linearize(model.double().eval(), x)).sigma
    torch.testing.assert_close(jn.local_lipschitz(model, x, max_bytes=1).sigma, expected)


def test_a_plain_function(x):
    L = jn.local_lipschitz(lambda x: 3 * x, x)
    torch.testing.assert_close(L.sigma, torch.full((11,), 3.0, dtype=torch.float64))


def test_errors():
    with pytest.raises(jn.InputError, match="no norm 'nuclear' here"):
        jn.local_lipschitz(MLP((4, 5, 3)), torch.randn(2, 4), norm="nuclear")
    with pytest.raises(jn.InputError, match="an iterable of batches; found float"):
        jn.local_lipschitz(MLP((4, 5, 3)).eval(), [1.0, 2.0])
    with pytest.raises(jn.InputError, match="first axis is the batch"):
        jn.local_lipschitz(MLP((4, 5, 3)).eval(), torch.tensor(1.0))


MEASURED = """
import sys, torch, jacnorm as jn
from pathlib import Path
from jacnorm.lab.nets import LeNet
def peak():
    line = next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
def grown(net, x, limit):
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    L = jn.local_lipschitz(net, x, max_bytes=limit)
    return peak() - before - 2 * sum(t.nbytes for t in (L.sigma, L.u, L.v, L.residual))
torch.set_num_threads(1)
for outputs, images, limit in ((10, 400, 8 << 20), (300, 120, 4 << 20)):
    net, x = LeNet(classes=outputs).eval(), torch.randn(images, 1, 28, 28)
    jn.local_lipschitz(net, x[:2])
    print(grown(net, x, limit), limit, grown(net, x, 1 << 40))
"""

# Large blocks go back to the system when they are freed: gaps that malloc keeps would count by chance.
AS_USED = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is Linux's to tell")
def test_memory_stays_below_what_was_given():
    """Beside the result itself, which is as large as the images, and held in parts until it is joined.

    With few outputs and with many, and without a limit, in one process that does nothing else.
    """
    command = [sys.executable, "-c", MEASURED]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=AS_USED)
    found = [[int(n) for n in line.split()] for line in done.stdout.splitlines()]
    assert len(found) == 2
    for limited, limit, unlimited in found:
        assert limited < limit < unlimited / 2, found


def test_a_data_loader_gives_what_its_batches_hold(model, x):
    model.eval()
    expected = jn.local_lipschitz(model, x)
    labels = torch.arange(len(x))
    for data in (TensorDataset(x), TensorDataset(x, labels)):
        found = jn.local_lipschitz(model, DataLoader(data, batch_size=4))
        torch.testing.assert_close(found.sigma, expected.sigma)
    torch.testing.assert_close(jn.local_lipschitz(model, list(x.split(3))).sigma, expected.sigma)


class Reader(nn.Module):
    """Of tokens and a mask, with its scores in a dict, as Hugging Face's are."""

    main_input_name = "ids"

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids, mask=None):
        z = self.embed(ids)
        return {"logits": self.head(torch.tanh(z * mask[..., None]).sum(1)), "hidden": z}


def test_batches_by_names_at_an_embedding():
    model, ids, mask = Reader().double(), torch.randint(9, (6, 5)), torch.rand(6, 5, dtype=torch.float64)
    rows = [{"mask": mask[i], "ids": ids[i]} for i in range(6)]
    found = jn.local_lipschitz(model, DataLoader(rows, batch_size=4), at="embed", output="logits")
    A = jn.linearize(model, ids, mask=mask, at="embed", output="logits").dense().detach()
    torch.testing.assert_close(found.sigma, torch.linalg.matrix_norm(A, 2))


def test_it_says_when_dropout_makes_sigma_random(model, x):
    noisy = nn.Sequential(model, nn.Dropout(0.5)).train()
    with pytest.warns(UserWarning, match=r"random numbers \(Dropout is in training mode\)"):
        jn.local_lipschitz(noisy, x)
    jn.local_lipschitz(noisy.eval(), x)  # warnings are errors here


@pytest.mark.parametrize("x", [3, "images", [], ["images"]])
def test_what_is_no_data(model, x):
    with pytest.raises(jn.InputError, match=r"must be a tensor|has no batches"):
        jn.local_lipschitz(model, x)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_shown_after_a_second_and_wiped_out(monkeypatch):
    now = iter([0.0, 0.5, 2.0, 2.5])
    monkeypatch.setattr("jacnorm.pytorch.progress.time.monotonic", lambda: next(now))
    progress = Progress("measuring σ", 400, stream := Terminal())
    progress.done(100)
    assert stream.getvalue() == ""
    progress.done(200)
    assert stream.getvalue() == "\rmeasuring σ: 200 of 400 samples, 2 s left"
    progress.done(300)
    progress.close()
    assert stream.getvalue().endswith(f"\r{' ' * 41}\r")
