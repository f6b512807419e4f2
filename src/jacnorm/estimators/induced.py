"""‖J‖_{∞→2} and ‖J‖_{1→2}: how far the output can move when the input changes by 1 in another norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..pytorch.precision import in_full_precision
from ..trust.checks import check_count
from .gram import MAX_BYTES, both_ways, bytes_of, rows
from .measure import SMALL, spectral_norm
from .operator import (
    Matrix,
    Operator,
    Transposed,
    all_done,
    as_operator,
    column,
    flat,
    is_wide,
    norms,
    size,
    start,
)
from .transforms import Weighted

# Random vectors to estimate the norms of J's columns, if there are too many columns to compute them all.
PROBES = 16


@dataclass(frozen=True)
class InducedNorm:
    """Bounds of ‖J‖_{p→2} = max ‖J v‖₂ over ‖v‖_p ≤ 1, for each sample.

    `lower` is ‖J v‖₂ at `v`. It is the best local maximum from several starts, because finding the global
    maximum is NP-hard for p = ∞. `upper` is an upper bound, provided that the Lanczos iteration behind it has
    found the largest singular value.
    """

    p: float
    lower: Tensor  # (B,)
    upper: Tensor  # (B,)
    v: Tensor  # (B, *input), of p-norm 1

    @property
    def gap(self) -> Tensor:
        """(upper − lower) / lower, (B,): the relative error of `lower` is at most this."""
        return (self.upper - self.lower) / self.lower.clamp_min(torch.finfo(self.lower.dtype).tiny)

    def __str__(self) -> str:
        return (
            f"‖J‖ from the {self.p:g}-norm to the 2-norm: attained, mean {self.lower.mean():.4g}, "
            f"max {self.lower.max():.4g}; the true one is larger by at most {self.gap.max():.1%}"
        )


@in_full_precision
@torch.no_grad()
def induced_norm(
    J: Operator | Tensor, p: float | str, *, restarts: int = 8, max_iterations: int = 100
) -> InducedNorm:
    """Bounds of ‖J‖_{p→2} = max ‖J v‖₂ over ‖v‖_p ≤ 1, for each sample.

    J
        An operator, or a matrix (m, n) or (B, m, n).
    p
        1 or "inf".
    restarts
        How many starts to try. The first is the top singular vector, the others are random.
    max_iterations
        The largest number of steps per start.

    Returns an `InducedNorm` with `lower` (B,), `upper` (B,) and `v` (B, *input). Raises `InputError` for any
    other p; for p = 2 there is `spectral_norm`.

    An attack in the ℓ∞ ball of radius ε moves the output by up to ε ‖J‖_{∞→2}, to first order. The
    generalized power method (Boyd, 1974; Roth, Kilcher & Hofmann, 2020) goes from v to the vertex of the unit
    ball in the direction of JᵀJ v: a vector of signs for p = ∞, one coordinate for p = 1. ‖J v‖ never
    decreases, and the method stops at a local maximum. For p = 1 the norm is the largest norm of a column.
    If one side of J is small, all columns are computed, and `lower` equals `upper`.

    >>> A = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    >>> e = induced_norm(A, "inf")
    >>> e.v * e.v[:, :1], e.lower**2  # the columns' difference is (-1, 7)
    (tensor([[ 1., -1.]]), tensor([50.]))
    >>> induced_norm(A, 1).lower ** 2  # the second column
    tensor([20.])
    """
    p = order(p)
    check_count("restarts", restarts)
    check_count("max_iterations", max_iterations)
    if p == 2:
        raise InputError("p=2: call spectral_norm(J) instead.")
    J = as_operator(J)
    A = _small(both_ways(J))
    if p == 1 and isinstance(A, Matrix):
        v = _vertex(_column_norms(A), p)
        longest = norms(A.jvp(v))
        return InducedNorm(p, longest, longest, v.view(J.input_shape))
    sigma, top = _largest(A)
    lower, v = _climb(A, p, top, max_iterations)
    for seed in range(1, restarts):
        value, other = _climb(A, p, start(A.input_shape, A, seed), max_iterations)
        v = torch.where(column(value > lower, v), other, v)
        lower = torch.maximum(lower, value)
    upper = sigma if p == 1 else _sign_bound(A, sigma)
    return InducedNorm(p, lower, torch.maximum(upper, lower), v.view(J.input_shape))


def order(p: float | str) -> float:
    """p (1, 2 or "inf") as a number."""
    if str(p) not in ("1", "1.0", "2", "2.0", "inf"):
        raise InputError(f"There is no norm {p!r} here: choose 1, 2 or 'inf'.")
    return float(p)


def _small(J: Operator) -> Operator:
    """J as a matrix if one side of it is small, so that products do not run the network; else J itself."""
    if min(size(J.input_shape), size(J.output_shape)) > SMALL or bytes_of(J) > MAX_BYTES:
        return J
    return Matrix(rows(J) if is_wide(J) else rows(Transposed(J)).mT)


def _largest(J: Operator) -> tuple[Tensor, Tensor]:
    """An upper bound of σ, and the right singular vector."""
    e = spectral_norm(J)
    return e.sigma + e.residual, e.v


def _climb(J: Operator, p: float, v: Tensor, max_iterations: int) -> tuple[Tensor, Tensor]:
    """Go from vertex to vertex while ‖J v‖ grows. Returns the largest ‖J v‖ and its v."""
    v = _vertex(v, p)
    w = J.jvp(v)
    for _ in range(max_iterations):
        new = _vertex(J.vjp(w), p)
        pushed = J.jvp(new)
        better = norms(pushed) > norms(w)
        if all_done(J, ~better):
            break
        v, w = torch.where(column(better, v), new, v), torch.where(column(better, w), pushed, w)
    return norms(w), v


def _vertex(g: Tensor, p: float) -> Tensor:
    """argmax ⟨g, v⟩ over ‖v‖_p ≤ 1. Where g is zero, either sign is a maximum."""
    signs = torch.where(g < 0, -1, 1).to(g)
    if p == math.inf:
        return signs
    where = flat(g).abs().argmax(1, keepdim=True)
    return torch.zeros_like(flat(g)).scatter(1, where, 1).view_as(g) * signs


def _sign_bound(J: Operator, sigma: Tensor) -> Tensor:
    """An upper bound of ‖J‖_{∞→2}: ‖J v‖ ≤ ‖J D⁻¹‖₂ ‖D v‖₂ ≤ ‖J D⁻¹‖₂ ‖d‖₂ for any positive d.

    d = 1 gives the well-known bound √n σ. With d the square root of the columns' norms, the bound is sharper,
    most of all if some pixels have little influence.
    """
    c = _column_norms(J)
    d = c.clamp_min(1e-6).sqrt()
    weighted, _ = _largest(Weighted(J, 1 / d.view(J.input_shape)))
    return torch.minimum(weighted * norms(d), sigma * math.sqrt(size(J.input_shape)))


def _column_norms(J: Operator) -> Tensor:
    """The norm of each column, (B, n_in), relative to the largest. Exact for a matrix, else an estimate."""
    if isinstance(J, Matrix):
        lengths = norms(J.A.mT.flatten(0, 1)).view(flat(J.A[:, 0]).shape)
    else:
        pulled = [flat(J.vjp(start(J.output_shape, J, seed))) for seed in range(PROBES)]
        lengths = norms(torch.stack(pulled, 2).flatten(0, 1)).view(pulled[0].shape)
    return lengths / lengths.amax(1, keepdim=True).clamp_min(torch.finfo(J.dtype).tiny)
