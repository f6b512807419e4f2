"""The spectral norm from all rows of J: what the paper calls analytical, for comparison."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engines.outer import differentiable_once
from ..estimators.gram import gram_of, top_eigenvector
from ..estimators.operator import norms
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
        dense = J.dense()
        with torch.no_grad():
            wide = dense.shape[1] <= dense.shape[2]
            top = top_eigenvector(gram_of(dense if wide else dense.mT)).to(dense.dtype)
        equation = "bmn,bm->bn" if wide else "bmn,bn->bm"
        return self.weight * differentiable_once(norms(torch.einsum(equation, dense, top)).mean())
