"""The largest eigenvalue of maps with known spectra, with both eigenvectors."""

import pytest
import torch
from oracles import pull, push

import jacnorm as jn
from jacnorm.estimators import eigenpairs

F64 = torch.float64


def with_eigenvalues(blocks, n, batch=3):
    """S B S⁻¹ with these 1×1 and 2×2 blocks on the diagonal, the rest small, a random S for each."""
    B = torch.diag(torch.linspace(0.1, 0.5, n, dtype=F64))
    at = 0
    for block in blocks:
        block = torch.tensor(block, dtype=F64)
        B[at : at + len(block), at : at + len(block)] = block
        at += len(block)
    S = torch.eye(n, dtype=F64) + 0.3 * torch.randn(batch, n, n, dtype=F64) / n**0.5
    return S @ B @ torch.linalg.inv(S)


def turn(radius, angle):
    c, s = radius * torch.cos(torch.tensor(angle)), radius * torch.sin(torch.tensor(angle))
    return [[float(c), float(-s)], [float(s), float(c)]]


@pytest.mark.parametrize("n", [5, 40, 200])
@pytest.mark.parametrize(
    ("blocks", "radius"),
    [
        ([[[2.0]], turn(1.5, 1.0)], 2.0),
        ([turn(2.0, 1.0), [[1.5]]], 2.0),
        ([turn(2.0, 1.57079632679)], 2.0),
        ([[[-2.0]]], 2.0),
    ],
    ids=["real", "complex", "imaginary", "negative"],
)
def test_known_spectra(blocks, radius, n):
    A = with_eigenvalues(blocks, n)
    e = eigenpairs(A, tol=1e-6)
    assert e.converged.all()
    torch.testing.assert_close(e.value.abs(), torch.full((3,), radius, dtype=F64), rtol=1e-6, atol=0)
    for real in (torch.Tensor.real.__get__, torch.Tensor.imag.__get__):
        ahead = push(A, real(e.right).contiguous())
        torch.testing.assert_close(ahead, real(e.value[:, None] * e.right), rtol=0, atol=1e-5)
        back = pull(A, real(e.left).contiguous())
        torch.testing.assert_close(back, real(e.value[:, None] * e.left), rtol=0, atol=1e-5)


def test_zeros_and_few_distinct_eigenvalues():
    """The Krylov space is complete after a step or two."""
    assert not eigenpairs(torch.zeros(2, 4, 4)).value.any()
    e = eigenpairs(2 * torch.eye(6, dtype=F64))
    torch.testing.assert_close(e.value.abs(), torch.tensor([2.0], dtype=F64))
    assert e.converged.all()
    nilpotent = torch.diag(torch.ones(3, dtype=F64), 1)
    assert eigenpairs(nilpotent).value.abs() < 1e-3


def test_says_when_the_space_is_too_small():
    A = with_eigenvalues([turn(2.0, 1.0), turn(1.98, 2.0), turn(1.97, 2.5)], 60)
    assert not eigenpairs(A, max_iterations=3).converged.any()
    assert eigenpairs(A, max_iterations=60).converged.all()


def test_only_square_maps_have_eigenvalues():
    with pytest.raises(jn.InputError, match="Eigenvalues need a square map"):
        eigenpairs(torch.ones(3, 2))
