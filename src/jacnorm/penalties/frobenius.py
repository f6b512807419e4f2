"""Hoffman et al.'s penalty on ‖J‖_F², eq. (2)."""

from __future__ import annotations

from torch import Tensor

from ..checks import check_count
from ..estimators.operator import normalized
from ..linearization import Linearization
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
        n_out = J.output_shape[1:].numel()
        total = J.output.new_zeros(())
        for _ in range(self.projections):
            u = normalized(self.random(J.output_shape, J))
            total = total + J.vjp(u).square().sum() / len(u)
        return self.weight * n_out / self.projections * total

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, projections={self.projections}"
