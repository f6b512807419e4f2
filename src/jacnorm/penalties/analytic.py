"""The spectral norm from all rows of J: what the paper calls analytical, for comparison."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engines.pairing import Pairing
from ..estimators.gram import gram_of, top_eigenvector
from ..estimators.operator import normalized, norms
from ..linearization import Linearization
from .base import Penalty


class AnalyticPenalty(Penalty):
    """weight · mean_i ‖J(x_i)‖₂ without iteration. It costs a product for every output."""

    def __init__(
        self,
        weight: float = 0.01,
        *,
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(weight, seed, every=every, budget=budget, fraction=fraction)

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            dense, pairing = J.dense(), Pairing()
            if dense.shape[1] <= dense.shape[2]:
                u = top_eigenvector(gram_of(dense)).to(dense.dtype).view(J.output_shape)
                w = J.jvp(normalized(J.vjp(u, pairing)), pairing)
            else:
                v = top_eigenvector(gram_of(dense.mT)).to(dense.dtype).view(J.input_shape)
                w = J.jvp(v, pairing)
                J.vjp(normalized(w), pairing)
        return pairing.handed_over(self.weight * norms(w).mean(), self.weight / len(w))
