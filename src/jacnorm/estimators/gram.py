"""The exact singular triple if one side of J is small: an eigenvector of J Jᵀ (or JᵀJ)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..pytorch.precision import in_full_precision
from .estimate import Estimate, from_left
from .operator import Matrix, Operator, Transposed, as_operator, basis, decomposable, flat, is_wide, size

# Rows of J are kept if they take at most this many bytes. If not, each column of J Jᵀ costs a second product.
MAX_BYTES = 1 << 30


@in_full_precision
@torch.no_grad()
def gram(J: Operator | Tensor, *, tol: float = 1e-3, max_bytes: int = MAX_BYTES) -> Estimate:
    """The largest singular triple of each sample, from the Gram matrix of the smaller side of J.

    It is exact up to rounding. J is an operator, or a matrix (m, n) or (B, m, n). `tol` decides `converged`
    only. `max_bytes` limits the rows of J that are kept. Returns an `Estimate`.

    >>> gram(torch.diag(torch.tensor([3.0, 1.0]))).sigma
    tensor([3.])
    """
    J = as_operator(J)
    if not is_wide(J):
        return gram(Transposed(J), tol=tol, max_bytes=max_bytes).transposed()
    u = top_eigenvector(gram_matrix(J, max_bytes)).to(J.dtype)
    return from_left(J, u.view(J.output_shape), tol, iterations=size(J.output_shape))


def gram_matrix(J: Operator, max_bytes: int = MAX_BYTES) -> Tensor:
    """J Jᵀ, shape (B, n_out, n_out)."""
    n_out = size(J.output_shape)
    if bytes_of(J) <= max_bytes:
        return gram_of(rows(J))
    K = torch.stack([flat(J.jvp(J.vjp(basis(J.output_shape, J, i)))) for i in range(n_out)], -1)
    return (K + K.mT) / 2


def gram_of(A: Tensor) -> Tensor:
    """A Aᵀ up to a factor that prevents overflow and underflow. Eigenvectors do not depend on it."""
    scale = A.abs().amax((1, 2), keepdim=True).clamp_min(torch.finfo(A.dtype).tiny)
    return (A / scale) @ (A / scale).mT


def top_eigenvector(K: Tensor) -> Tensor:
    return torch.linalg.eigh(decomposable(K)).eigenvectors[..., -1]


class Rows(Matrix):
    """All of J, computed from products Jᵀu only, with the shapes of J."""

    def __init__(self, J: Operator):
        super().__init__(rows(J))
        self.input_shape, self.output_shape = J.input_shape, J.output_shape

    def jvp(self, v: Tensor) -> Tensor:
        return torch.einsum("bmn,bn->bm", self.A, flat(v)).view(self.output_shape)

    def vjp(self, u: Tensor) -> Tensor:
        return torch.einsum("bmn,bm->bn", self.A, flat(u)).view(self.input_shape)


@torch.no_grad()
def both_ways(J: Operator) -> Operator:
    """J itself, or all its rows if J has no J v (see `Linearization.is_one_way`).

    If the rows are too large to keep, this returns J, and J v raises an error that says what is wrong.
    """
    is_one_way = getattr(J, "is_one_way", False)
    return Rows(J) if is_one_way and bytes_of(J) <= MAX_BYTES else J


def bytes_of(J: Operator) -> int:
    """The memory of all entries of J."""
    return J.input_shape.numel() * size(J.output_shape) * torch.finfo(J.dtype).bits // 8


def rows(J: Operator) -> Tensor:
    """All of J, shape (B, n_out, n_in), from one product per output."""
    n_out = size(J.output_shape)
    return torch.stack([flat(J.vjp(basis(J.output_shape, J, i))) for i in range(n_out)], 1)
