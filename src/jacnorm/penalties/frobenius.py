"""Hoffman et al.'s penalty on ‖J‖_F², eq. (2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engines.pairing import Pairing, split_factor
from ..estimators.operator import normalized
from ..linearization import Linearization
from ..trust.checks import check_count
from .base import Penalty


class FrobeniusPenalty(Penalty):
    """weight · mean_i ‖J(x_i)‖_F², estimated without bias from random projections u on the unit sphere:
    ‖J‖_F² = n_out · E ‖Jᵀu‖²."""

    def __init__(
        self,
        weight: float = 0.01,
        projections: int = 1,
        *,
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(weight, seed, every=every, budget=budget, fraction=fraction)
        check_count("projections", projections)
        self.projections = projections

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        total = J.output.new_zeros((), dtype=J.dtype)
        factor = self.weight * J.output_shape[1:].numel() / (self.projections * J.output_shape[0])
        for _ in range(self.projections):
            total = total + self._squared(J, normalized(self.random(J.output_shape, J)), factor)
        return total

    def _squared(self, J: Linearization, u: Tensor, factor: float) -> Tensor:
        """factor · Σ ‖Jᵀu‖², whose gradient is that of 2 factor · Σ uᵀJ c with c = Jᵀu held fixed."""
        if not torch.is_grad_enabled():
            return factor * J.vjp(u).square().sum()
        pairing = Pairing()
        scale, rest = split_factor(2 * factor, J)
        with torch.no_grad():
            c = J.vjp(u, pairing)
            J.jvp(scale * c, pairing)
        again = (lambda: factor * J.vjp(u).square().sum()) if J.is_piecewise_linear else None
        return pairing.handed_over(factor * c.square().sum(), rest, again)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, projections={self.projections}"
