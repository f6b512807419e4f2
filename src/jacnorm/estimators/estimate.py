"""A singular triple, and how accurate it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..plots import plot_estimate
from .operator import Operator, column, divided, norms


@dataclass(frozen=True)
class Estimate:
    """The largest singular value σ of each sample, with unit vectors u and v: J v ≈ σ u.

    Some singular value lies within `residual` of `sigma`. It is the largest, unless the start was (nearly)
    orthogonal to its singular vector. `converged` says whether `residual` is at most tol · σ.
    """

    sigma: Tensor  # (B,)
    u: Tensor  # (B, *output)
    v: Tensor  # (B, *input)
    residual: Tensor  # (B,)
    converged: Tensor  # (B,)
    iterations: int  # the number of rounds, each a product with J and one with Jᵀ (exact Gram: rows of J)
    is_half: bool = False  # whether products with J were computed in half precision

    def transposed(self) -> Estimate:
        """The same estimate for Jᵀ: u and v are swapped."""
        return replace(self, u=self.v, v=self.u)

    def plot(self) -> Any:
        """A matplotlib figure of the distribution of σ over the samples. For images it also shows v."""
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
    """The triple σ = ‖Jᵀu‖, u, v = Jᵀu/σ for a unit vector u, with its true residual ‖J v − σu‖."""
    w = J.vjp(u)
    sigma = norms(w)
    v = divided(w, sigma)
    residual = norms(J.jvp(v) - column(sigma, u) * u)
    return Estimate(sigma, u, v, residual, reached(sigma, residual, tol), iterations)


def reached(sigma: Tensor, residual: Tensor, tol: float) -> Tensor:
    return (residual <= tol * sigma) & torch.isfinite(sigma)
