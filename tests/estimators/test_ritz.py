"""The best vector of a Krylov space, beside that of power iteration."""

import pytest
import torch
from oracles import with_spectrum

from jacnorm.estimators.operator import Matrix, normalized, norms
from jacnorm.estimators.ritz import Ritz

F64 = torch.float64


def best(A, u, rounds):
    """By hand: the largest singular value of Aᵀ on the space of u, A Aᵀu, … and its right vector."""
    columns = [u]
    for _ in range(rounds - 1):
        columns.append(normalized((A @ A.mT @ columns[-1][..., None])[..., 0]))
    Q = torch.linalg.qr(torch.stack(columns, 2)).Q
    return torch.linalg.svd(A.mT @ Q).U[:, :, 0]


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [(7, 12), (12, 7)])
def test_it_is_the_best_of_the_krylov_space(shape, rounds):
    A = with_spectrum([3.0, 2.9, 2.5, 2.0, 1.0, 0.5], *shape)
    J, u = Matrix(A), normalized(torch.randn(2, shape[0], dtype=F64))
    space = Ritz(J, u)
    for left in reversed(range(rounds)):
        v = space.right()
        w = J.jvp(v)
        if left:
            space.grow(w)
    expected = best(A, u, rounds)
    torch.testing.assert_close((v * expected).sum(1).abs(), torch.ones(2, dtype=F64))
    torch.testing.assert_close(norms(v), torch.ones(2, dtype=F64))
    gap = norms(w - (w * space.u).sum(1, keepdim=True) * space.u)
    torch.testing.assert_close(space.gap(w), gap.sum() / norms(w).sum())


def test_a_space_that_is_complete_stays_right():
    A = with_spectrum([3.0, 1.0], 4, 4)
    J, space = Matrix(A), Ritz(Matrix(A), normalized(torch.randn(2, 4, dtype=F64)))
    for _ in range(12):
        w = J.jvp(space.right())
        space.grow(w)
    torch.testing.assert_close(norms(w), torch.full((2,), 3.0, dtype=F64))
    assert space.gap(w) < 1e-6


def test_zeros_stay_zeros():
    J = Matrix(torch.zeros(2, 3, 4, dtype=F64))
    space = Ritz(J, normalized(torch.randn(2, 3, dtype=F64)))
    for _ in range(3):
        w = J.jvp(space.right())
        space.grow(w)
    assert not w.any()
