"""Singular vectors against torch.linalg.svd."""

import pytest
import torch
from oracles import with_spectrum
from torch import nn

import jacnorm as jn

F64 = torch.float64


@pytest.mark.parametrize("shape", [(4, 50), (50, 4), (40, 60), (60, 40)])
def test_triples(shape):
    A = with_spectrum([5.0, 4.0, 2.0, 0.5], *shape)
    U, S, V = jn.singular_vectors(A, k=3, tol=1e-9)
    assert (U.shape, S.shape, V.shape) == ((2, 3, shape[0]), (2, 3), (2, 3, shape[1]))
    torch.testing.assert_close(S, torch.tensor([5.0, 4.0, 2.0], dtype=F64).expand(2, 3))
    torch.testing.assert_close(A @ V.mT, (S[..., None] * U).mT)
    for W in (U, V):
        torch.testing.assert_close(W @ W.mT, torch.eye(3, dtype=F64).expand(2, 3, 3))
    P, _, Q = torch.linalg.svd(A, full_matrices=False)
    for ours, theirs in ((U, P.mT), (V, Q)):
        torch.testing.assert_close((ours * theirs[:, :3]).sum(2).abs(), torch.ones(2, 3, dtype=F64))
    assert (U.gather(2, U.abs().argmax(2, keepdim=True)) > 0).all()


def test_values_that_occur_more_than_once():
    A = with_spectrum([3.0, 3.0, 1.0], 40, 50)
    _, S, V = jn.singular_vectors(A, k=2)
    torch.testing.assert_close(S, torch.full((2, 2), 3.0, dtype=F64))
    torch.testing.assert_close(V @ V.mT, torch.eye(2, dtype=F64).expand(2, 2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("shape", [(40, 50), (50, 40)])
def test_more_than_there_are(shape, dtype):
    """Beyond the rank J V = 0, and both are still bases."""
    A = with_spectrum([3.0, 2.0], *shape).to(dtype)
    U, S, V = jn.singular_vectors(A, k=4)
    close = {"rtol": 0, "atol": 50 * torch.finfo(dtype).eps}
    torch.testing.assert_close(A @ V.mT, (S[..., None] * U).mT, **close)
    for W in (U, V):
        torch.testing.assert_close(W @ W.mT, torch.eye(4, dtype=dtype).expand(2, 4, 4), **close)
    none = jn.singular_vectors(0 * A, k=2)
    torch.testing.assert_close(none.V.norm(dim=2), torch.ones(2, 2, dtype=dtype))


def test_small_values_of_large_images_are_not_taken_for_zero():
    """In single precision rounding is far below n·ε, which is 1 % here."""
    chosen = torch.linalg.qr(torch.randn(100_000, 2)).Q.T
    A = torch.zeros(40, 100_000)
    A[0], A[1] = chosen[0], 3e-3 * chosen[1]
    _, S, V = jn.singular_vectors(A, k=2, tol=1e-4)
    torch.testing.assert_close(S[0], torch.tensor([1.0, 3e-3]), rtol=1e-3, atol=0)
    torch.testing.assert_close((V[0] * chosen).sum(1).abs(), torch.ones(2), rtol=1e-3, atol=0)


def test_they_have_the_shape_of_the_images():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))
    J = jn.linearize(model, torch.randn(2, 1, 7, 7))
    U, S, V = jn.singular_vectors(J, k=3)
    assert U.shape == V.shape == (2, 3, 1, 7, 7)
    for i in range(3):
        torch.testing.assert_close(J.jvp(V[:, i]), S[:, i, None, None, None] * U[:, i], atol=1e-5, rtol=0)
    assert jn.singular_vectors(torch.randn(2, 1, 7), k=5).S.shape == (2, 1)


def test_zero():
    for shape in ((4, 5), (40, 50)):
        U, S, V = jn.singular_vectors(torch.zeros(2, *shape), k=2)
        assert not S.any()
        assert torch.isfinite(U).all()
        assert torch.isfinite(V).all()


@pytest.mark.parametrize("options", [{"k": 0}, {"tol": 0.0}, {"max_iterations": 0}])
def test_bad_options(options):
    with pytest.raises(jn.InputError, match=next(iter(options))):
        jn.singular_vectors(torch.eye(3), **options)
