"""The largest singular values with their vectors: the changes to which a network is most sensitive."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..plots import plot_vectors
from ..pytorch.precision import in_full_precision
from ..trust.checks import check_count, check_positive
from .gram import both_ways, rows
from .lanczos import deflated
from .measure import SMALL
from .operator import (
    Operator,
    Transposed,
    as_operator,
    decomposable,
    divided,
    flat,
    is_wide,
    norms,
    size,
    start,
)


class SingularVectors(NamedTuple):
    """The largest singular triples of each sample, largest first: J V[:, i] = S[:, i] U[:, i]."""

    U: Tensor  # (B, k, *output)
    S: Tensor  # (B, k)
    V: Tensor  # (B, k, *input)

    def plot(self, x: Tensor | None = None) -> Any:
        """A matplotlib figure of the directions V of the first samples. If x is given, it is shown on top."""
        return plot_vectors(self.S, self.V, x)


@in_full_precision
@torch.no_grad()
def singular_vectors(
    J: Operator | Tensor, k: int = 5, *, tol: float = 1e-6, max_iterations: int = 300
) -> SingularVectors:
    """The k largest singular values of each sample, with their unit vectors.

    J is a linearization, another operator, or a matrix (m, n) or (B, m, n). `tol` is the relative tolerance,
    and `max_iterations` the largest number of Lanczos rounds per value. Returns `SingularVectors`: U of shape
    (B, k, *output), S (B, k) and V (B, k, *input). k is smaller if J has fewer singular values. Raises the
    errors of `spectral_norm`.

    V are the changes of the input that change the output most. The sign of a pair (u, v) is arbitrary. It is
    chosen so that the entry of u with the largest modulus is positive.

    >>> U, S, V = singular_vectors(torch.diag(torch.tensor([3.0, 1.0, 2.0])), k=2)
    >>> S, V
    (tensor([[3., 2.]]), tensor([[[1., 0., 0.],
                                  [0., 0., 1.]]]))
    """
    check_count("k", k)
    check_positive("tol", tol)
    check_count("max_iterations", max_iterations)
    J = both_ways(as_operator(J))
    if is_wide(J):
        U, S, V = _triples(J, k, tol, max_iterations)
    else:
        V, S, U = _triples(Transposed(J), k, tol, max_iterations)
    sign = torch.where(U.gather(2, U.abs().argmax(2, keepdim=True)) < 0, -1, 1)
    batch, k = S.shape
    shapes = [(batch, k, *shape[1:]) for shape in (J.output_shape, J.input_shape)]
    return SingularVectors((U * sign).view(shapes[0]), S, (V * sign).view(shapes[1]))


def _triples(J: Operator, k: int, tol: float, max_iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """U (B, k, n_out), S (B, k) and V (B, k, n_in) of a wide J."""
    k = min(k, size(J.output_shape))
    if size(J.output_shape) <= SMALL:
        P, S, Q = torch.linalg.svd(decomposable(rows(J)), full_matrices=False)
        return P.mT[:, :k], S[:, :k], Q[:, :k]
    S, U = deflated(J, k, tol, max_iterations)
    pulled = torch.stack([flat(J.vjp(u)) for u in U.unbind(1)], 1)
    return U.flatten(2), S, _orthonormal(pulled, S)


def _orthonormal(W: Tensor, S: Tensor) -> Tensor:
    """Unit vectors along the rows of W = UᵀJ, (B, k, n), each orthogonal to the rows before it.

    If a singular value is zero, its row is only rounding, and points along the other rows. Any vector that is
    orthogonal to them is then correct.
    """
    nothing = 10 * torch.finfo(W.dtype).eps * S[:, 0]
    found: list[Tensor] = []
    for i, w in enumerate(W.unbind(1)):
        own = _without(found, w)
        other = _without(found, start(w.shape, w, seed=i))
        w = torch.where((norms(own) > nothing)[:, None], own, other)
        found.append(divided(w, norms(w)))
    return torch.stack(found, 1)


def _without(found: list[Tensor], w: Tensor) -> Tensor:
    """The part of w that is orthogonal to the vectors found. Two rounds are enough (Kahan)."""
    for v in found * 2:
        w = w - (w * v).sum(1, keepdim=True) * v
    return w
