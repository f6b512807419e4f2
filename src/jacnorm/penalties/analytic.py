"""The spectral norm from all rows of J, for comparison. The paper calls it analytical."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from ..engines.pairing import Pairing
from ..estimators.gram import gram_of, top_eigenvector
from ..estimators.operator import divided, norms
from ..linearization import Linearization
from .norm import Common, NormPenalty, held


class AnalyticPenalty(NormPenalty):
    """weight · mean_i ‖J(x_i)‖₂, exact and without iteration. It costs one product per output.

    `penalty(J)` returns a scalar. All of J is held in memory; if it is too large, `InputError` is raised.
    Further arguments are those of `NormPenalty`.
    """

    def __init__(self, weight: float = 0.01, **common: Unpack[Common]):
        super().__init__(weight, **common)

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        dense, pairing = held(J, instead="SpectralPenalty takes a few products."), Pairing()
        with torch.no_grad():
            u = _top_left(dense).view(J.output_shape)
            c = J.vjp(u, pairing)
            sigma = norms(c)
        return self.carried(J, sigma, [(u, divided(c, sigma))], pairing)


def _top_left(dense: Tensor) -> Tensor:
    """u₁ of each matrix, from the smaller of the two Gram matrices."""
    if dense.shape[1] <= dense.shape[2]:
        return top_eigenvector(gram_of(dense)).to(dense.dtype)
    v = top_eigenvector(gram_of(dense.mT)).to(dense.dtype)
    w = torch.einsum("boi,bi->bo", dense, v)
    return divided(w, norms(w))
