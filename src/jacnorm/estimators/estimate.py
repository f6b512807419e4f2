"""A singular triple and how good it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..plots import plot_estimate
from .operator import Operator, column, divided, norms


@dataclass(frozen=True)
class Estimate:
    """σ with unit vectors u and v, per sample.

    Some singular value lies within `residual` of `sigma`: the largest, unless the start was (nearly)
    orthogonal to its vector. `converged` says whether the residual is below the tolerance asked for,
    relative to σ.
    """

    sigma: Tensor  # (B,)
    u: Tensor  # (B, *output)
    v: Tensor  # (B, *input)
    residual: Tensor  # (B,)
    converged: Tensor  # (B,)
    iterations: int  # products with J and Jᵀ, in pairs (for the exact Gram: rows of J)
    is_half: bool = False  # J's products were taken in half precision

    def transposed(self) -> Estimate:
        return replace(self, u=self.v, v=self.u)

    def plot(self) -> Any:
        """How σ is spread over the samples, as a matplotlib figure; of images also the directions v."""
        return plot_estimate(self.sigma, self.v)

    def __str__(self) -> str:
        failed = int((~self.converged).sum())
        worst = (self.residual / self.sigma.clamp_min(torch.finfo(self.sigma.dtype).tiny)).max()
        text = (
            f"σ: mean {self.sigma.mean():.4g}, max {self.sigma.max():.4g}; "
            f"worst relative residual {worst:.1e} after {self.iterations} rounds"
        )
        if not failed:
            return f"{text}; all converged"
        rounding = worst < 100 * torch.finfo(self.sigma.dtype).eps
        advice = "x.double(), rounding is the limit" if rounding else "a larger max_iterations="
        if self.is_half:
            advice = "model.float() and x.float(), half precision is the limit (no more rounds help)"
        return f"{text}; {failed} of {len(self.sigma)} samples not converged: try {advice}"


def from_left(J: Operator, u: Tensor, tol: float, iterations: int) -> Estimate:
    """The triple that a unit u near the left singular vector gives, with its true residual."""
    w = J.vjp(u)
    sigma = norms(w)
    v = divided(w, sigma)
    residual = norms(J.jvp(v) - column(sigma, u) * u)
    return Estimate(sigma, u, v, residual, reached(sigma, residual, tol), iterations)


def reached(sigma: Tensor, residual: Tensor, tol: float) -> Tensor:
    return (residual <= tol * sigma) & torch.isfinite(sigma)
