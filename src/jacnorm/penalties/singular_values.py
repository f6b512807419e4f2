"""Penalties on norms of singular values (nuclear, Ky Fan, Frobenius, Schatten), and on induced norms."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from ..errors import InputError
from ..estimators.operator import decomposable
from ..linearization import Linearization
from ..trust.checks import check_count, is_number
from .base import Penalty
from .frobenius import FrobeniusPenalty
from .norm import Common, NormPenalty, Pair, Reduction, check_part, held
from .settings import Setting


def _order(name: str, p: float) -> float:
    if not is_number(p) or not p >= 1:
        raise InputError(f"{name}={p!r}: it must be a number from 1 on, or float('inf').")
    return float(p)


def _column_or_row(name: str, p: float | str) -> float:
    if str(p) not in ("1", "1.0", "inf"):
        raise InputError(f"{name}={p!r}: choose 1 or 'inf'; for 2 there is SpectralPenalty.")
    return float(p)


def _check_some(name: str, k: int | None) -> None:
    if k is not None:
        check_count(name, k)


class SchattenPenalty(NormPenalty):
    """weight · mean_i (Σ_j σ_j^p)^(1/p) over the k largest singular values σ_j of J(x_i), exact.

    `penalty(J)` returns a scalar. All of J is held in memory, and each singular value costs two sweeps; if J
    is too large, `InputError` is raised. The gradient is ∂‖J‖ = Σ_j s_j u_jᵀ ∂J v_j with
    s_j = (σ_j/‖J‖)^(p−1); s_j is zero if σ_j is only rounding.

    p
        1 is the nuclear norm (with k, the Ky Fan norm), which makes J low-rank. 2 is ‖J‖_F, not squared.
        float("inf") is σ₁.
    k
        How many singular values count; all by default.

    Further arguments are those of `NormPenalty`.
    """

    def __init__(self, weight: float = 0.01, p: float = 1, k: int | None = None, **common: Unpack[Common]):
        super().__init__(weight, **common)
        self.p, self.k = p, k

    p = Setting[float](_order)
    k = Setting[int | None](_check_some)

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        dense = held(
            J,
            instead="For large maps use NuclearBoundPenalty, FrobeniusPenalty or SpectralPenalty, which need "
            "only products.",
        )
        with torch.no_grad():
            U, S, V = torch.linalg.svd(decomposable(dense), full_matrices=False)
            norms, slopes = gauge(S[:, : self.k], self.p, torch.finfo(S.dtype).eps * max(dense.shape[1:]))
            V = V[:, : slopes.shape[1]] * slopes[:, :, None]
            pairs: list[Pair] = [
                (u.reshape(J.output_shape), v.reshape(J.input_shape))
                for u, v in zip(U.unbind(2), V.unbind(1), strict=False)
            ]
        return self.carried(J, norms, pairs)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p:g}" + ("" if self.k is None else f", k={self.k}")


def gauge(S: Tensor, p: float, eps: float) -> tuple[Tensor, Tensor]:
    """(Σ σ^p)^(1/p) of sorted singular values (B, k), shape (B,), and its derivative in each, (B, k)."""
    largest = S[:, :1]
    if p == float("inf"):
        slopes = torch.zeros_like(S)
        slopes[:, 0] = (largest > 0)[:, 0].to(S.dtype)
        return largest[:, 0], slopes
    relative = S / largest.clamp_min(torch.finfo(S.dtype).tiny)
    size = (relative**p).sum(1, keepdim=True) ** (1 / p)
    slopes = (relative / size.clamp_min(1)) ** (p - 1)  # size is at least 1, except for J = 0
    return (largest * size)[:, 0], slopes.masked_fill(eps * largest >= S, 0)


class NuclearBoundPenalty(Penalty):
    """weight · mean_i ½(‖G‖_F² + ‖H‖_F²) ≥ weight · mean_i ‖J‖_*, for J = G H with H the Jacobian up to `at`.

    `penalty(J)` returns a scalar. It takes J = linearize(model, x, through=[at]). For every network there is
    another one that computes the same function and attains equality (Scarvelis & Solomon, 2024). So training
    with this bound is like training with the nuclear norm, at the cost of two Frobenius penalties.

    at
        The name of the submodule whose output splits the network. If a path goes around it, the value is not
        a bound.
    projections
        As in `FrobeniusPenalty`, for both norms.
    reduction
        "mean", "sum" or "none".
    every, budget, fraction, seed
        As in `Penalty`.
    """

    def __init__(
        self,
        weight: float = 0.01,
        *,
        at: str,
        projections: int | Literal["all"] = 1,
        reduction: Reduction = "mean",
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(weight, seed, every=every, budget=budget, fraction=fraction)
        if reduction == "max":
            raise InputError("reduction='max' is not possible for a sum of two estimates; choose 'none'.")
        self.at = at
        self.frobenius = FrobeniusPenalty(0.5, projections, reduction=reduction, seed=seed)
        check_part(fraction, reduction)

    def value_shape(self, J: Linearization) -> torch.Size:
        return self.frobenius.value_shape(J)

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        first, second = J.between(None, self.at), J.between(self.at, None)
        return self.weight * (self.frobenius(first) + self.frobenius(second))


class InducedPenalty(NormPenalty):
    """weight · mean_i max ‖J v‖_p over ‖v‖_p ≤ 1, exact.

    `penalty(J)` returns a scalar. All of J is held in memory, to find the largest column or row; if it is too
    large, `InputError` is raised. The gradient needs only one pair of vectors.

    p
        1 is the largest column sum of |J|, "inf" the largest row sum.

    Further arguments are those of `NormPenalty`.
    """

    def __init__(self, weight: float = 0.01, p: float | str = "inf", **common: Unpack[Common]):
        super().__init__(weight, **common)
        self.p = p

    p = Setting[Any](_column_or_row)

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        dense = held(J, instead="SpectralPenalty needs only products.")
        with torch.no_grad():
            A = dense.mT if self.p == 1 else dense  # the largest row of it
            norms, where = A.abs().sum(2).max(1)
            row = A.take_along_dim(where[:, None, None], 1)[:, 0]
            unit = torch.zeros_like(A[:, :, 0]).scatter(1, where[:, None], 1)
            u, v = (row.sign(), unit) if self.p == 1 else (unit, row.sign())
        return self.carried(J, norms, [(u.view(J.output_shape), v.view(J.input_shape))])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p:g}"
