"""Induced norms against all vertices of the unit ball: 2ⁿ sign vectors, n coordinates."""

import itertools
import math

import pytest
import torch
from torch import nn

import jacnorm as jn
from jacnorm.estimators import Matrix

F64 = torch.float64


def over_all_signs(A):
    """‖A‖_{∞→2}: a convex function is largest at a vertex, here a vector of signs."""
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=A.shape[2])), dtype=A.dtype)
    return torch.einsum("bmn,sn->bsm", A, signs).norm(dim=2).amax(1)


def pushed(A, v):
    return torch.einsum("bmn,bn->bm", A, v).norm(dim=1)


class Hidden:
    """A matrix that is not known to be one, as networks are."""

    def __init__(self, A):
        matrix = Matrix(A)
        self.input_shape, self.output_shape = matrix.input_shape, matrix.output_shape
        self.dtype, self.device, self.jvp, self.vjp = matrix.dtype, matrix.device, matrix.jvp, matrix.vjp


@pytest.mark.parametrize("shape", [(1, 9), (3, 10), (12, 12), (40, 8)])
@pytest.mark.parametrize("p", ["inf", math.inf])
def test_signs(shape, p):
    A = torch.randn(20, *shape, dtype=F64)
    true = over_all_signs(A)
    e = jn.induced_norm(A, p)
    assert torch.equal(e.v.abs(), torch.ones_like(e.v))
    torch.testing.assert_close(pushed(A, e.v), e.lower)
    assert (e.lower <= true * (1 + 1e-12)).all()
    assert (e.upper >= true * (1 - 1e-12)).all()
    assert (e.lower > 0.88 * true).all()
    assert (e.gap < 0.35).all()
    torch.testing.assert_close(jn.induced_norm(A, p, restarts=150).lower, true, rtol=0.02, atol=0)


def test_a_local_maximum_does_not_move():
    A = torch.randn(20, 12, 12, dtype=F64)
    v = jn.induced_norm(A, "inf", restarts=1).v
    assert torch.equal((A.mT @ (A @ v[..., None]))[..., 0].sign(), v)


def test_one_output_is_the_1_norm_of_its_row():
    A = torch.randn(5, 1, 30, dtype=F64)
    e = jn.induced_norm(A, "inf")
    torch.testing.assert_close(e.lower, A.abs().sum((1, 2)))
    torch.testing.assert_close(e.upper, e.lower)


@pytest.mark.parametrize("shape", [(1, 9), (10, 60), (60, 10), (50, 60)])
@pytest.mark.parametrize("p", [1, 1.0, "1"])
def test_columns(shape, p):
    A = torch.randn(6, *shape, dtype=F64)
    e = jn.induced_norm(A, p)
    torch.testing.assert_close(e.lower, A.norm(dim=1).amax(1))
    torch.testing.assert_close(e.upper, e.lower)
    torch.testing.assert_close(pushed(A, e.v), e.lower)
    assert torch.equal(e.v.abs().sum(1), torch.ones(6, dtype=F64))


@pytest.mark.parametrize("p", [1, "inf"])
def test_products_alone_are_enough(p):
    """With both sides large nothing but J v and Jᵀu is used."""
    A = torch.randn(4, 40, 50, dtype=F64) * torch.rand(50, dtype=F64) ** 2
    e = jn.induced_norm(Hidden(A), p)
    torch.testing.assert_close(pushed(A, e.v), e.lower)
    if p == 1:
        true = A.norm(dim=1).amax(1)
        torch.testing.assert_close(e.lower, true)
        assert (e.upper >= true).all()
    else:
        reference = jn.induced_norm(A, p, restarts=50)
        assert (e.lower > 0.97 * reference.lower).all()
        assert (e.upper >= reference.lower).all()
        assert (e.gap < 0.3).all()
        sigma = torch.linalg.matrix_norm(A, 2)
        assert (e.upper < 0.9 * math.sqrt(50) * sigma).all()  # the columns' sizes were used


@pytest.mark.parametrize("p", [1, "inf"])
@pytest.mark.parametrize("shape", [(3, 4), (40, 50)])
def test_zero(p, shape):
    e = jn.induced_norm(Hidden(torch.zeros(2, *shape)), p)
    assert torch.equal(e.lower, torch.zeros(2))
    assert torch.equal(e.upper, torch.zeros(2))
    assert torch.equal(e.gap, torch.zeros(2))


@pytest.mark.parametrize("p", [1, "inf"])
def test_one_samples_norm_does_not_depend_on_the_others(p):
    A = torch.randn(5, 40, 50, dtype=F64)
    together, alone = jn.induced_norm(Hidden(A), p), jn.induced_norm(Hidden(A[2:3]), p)
    torch.testing.assert_close(together.lower[2:3], alone.lower, rtol=1e-13, atol=0)
    torch.testing.assert_close(together.upper[2:3], alone.upper, rtol=1e-6, atol=0)


def test_an_attack_sees_it():
    """‖f(x + ε v) - f(x)‖ = ε ‖J‖_{∞→2} while no unit changes its side, and no sign vector does better."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 20), nn.ReLU(), nn.Linear(20, 3)).to(F64)
    x = torch.randn(4, 1, 3, 3, dtype=F64)
    e = jn.induced_norm(jn.linearize(model, x), "inf")
    assert e.v.shape == x.shape
    eps = 1e-6
    moved = (model(x + eps * e.v) - model(x)).norm(dim=1) / eps
    torch.testing.assert_close(moved, e.lower, rtol=1e-6, atol=0)
    torch.testing.assert_close(e.lower, over_all_signs(jn.linearize(model, x).dense().detach()))
    assert "larger by at most" in str(e)


@pytest.mark.parametrize(
    ("p", "message"), [(2, "call spectral_norm"), (3, "no norm 3 here"), ("two", "choose 1, 2 or 'inf'")]
)
def test_other_norms(p, message):
    with pytest.raises(jn.InputError, match=message):
        jn.induced_norm(torch.eye(3), p)


def test_options():
    with pytest.raises(jn.InputError, match="restarts=0"):
        jn.induced_norm(torch.eye(3), "inf", restarts=0)
