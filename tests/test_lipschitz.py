"""The one-line answer is that of linearize and the estimators, for batches of any size."""

import pytest
import torch
from torch import nn

import jacnorm as jn
from jacnorm import lipschitz
from jacnorm.lab.nets import MLP


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3)).double()


@pytest.fixture
def x():
    return torch.randn(11, 4, dtype=torch.float64)


@pytest.mark.parametrize("chunk", [4, 11, 100])
def test_the_dense_norm(model, x, chunk, monkeypatch):
    monkeypatch.setattr(lipschitz, "CHUNK", chunk)
    model.eval()
    J = jn.linearize(model, x)
    A = J.dense().detach()
    L = jn.local_lipschitz(model, x)
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


def test_in_training_the_batch_stays_whole(model, x, monkeypatch):
    """Its statistics would change."""
    monkeypatch.setattr(lipschitz, "CHUNK", 4)
    expected = jn.spectral_norm(jn.linearize(model, x)).sigma
    torch.testing.assert_close(jn.local_lipschitz(model, x).sigma, expected)
    torch.testing.assert_close(jn.local_lipschitz(model.forward, x).sigma, expected)
    model.eval()
    model[1].train()
    torch.testing.assert_close(jn.local_lipschitz(model, x).sigma, expected)


def test_a_plain_function(x):
    L = jn.local_lipschitz(lambda x: 3 * x, x)
    torch.testing.assert_close(L.sigma, torch.full((11,), 3.0, dtype=torch.float64))


def test_errors():
    with pytest.raises(jn.InputError, match="no norm 'nuclear' here"):
        jn.local_lipschitz(MLP((4, 5, 3)), torch.randn(2, 4), norm="nuclear")
    with pytest.raises(jn.InputError, match="must be a tensor, found list"):
        jn.local_lipschitz(MLP((4, 5, 3)).eval(), [1.0, 2.0])
    with pytest.raises(jn.InputError, match="first axis is the batch"):
        jn.local_lipschitz(MLP((4, 5, 3)).eval(), torch.tensor(1.0))
