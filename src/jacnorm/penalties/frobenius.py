"""Hoffman et al.'s penalty on ‖J‖_F², eq. (2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from ..engines.pairing import Pairing, split_factor
from ..estimators.operator import basis, flat, normalized, size
from ..linearization import Linearization
from ..trust.checks import check_count
from .norm import Curve, NormPenalty, Reduction, Shape


class FrobeniusPenalty(NormPenalty):
    """weight · mean_i ‖J(x_i)‖_F², estimated without bias from random projections u on the unit sphere:
    ‖J‖_F² = n_out · E ‖Jᵀu‖².

    projections
        How many, or "all": then u are the unit vectors, one for each output, and the value is exact.
    h
        "identity" is ‖J‖_F² itself. What another h makes of an estimate is biased: use it with "all".
    """

    def __init__(
        self,
        weight: float = 0.01,
        projections: int | Literal["all"] = 1,
        *,
        h: Shape | Curve = "identity",
        threshold: float = 1.0,
        reduction: Reduction = "mean",
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(
            weight,
            h=h,
            threshold=threshold,
            reduction=reduction,
            every=every,
            budget=budget,
            fraction=fraction,
            seed=seed,
        )
        if projections != "all":
            check_count("projections", projections)
        self.projections = projections

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        us = self._directions(J)
        samples, n_out = J.output_shape[0], J.output_shape[1:].numel()
        count = n_out if self.projections == "all" else self.projections
        if not self.is_plain:
            return self._bent(J, list(us), n_out / count)
        total = J.output.new_zeros((), dtype=J.dtype)
        for u in us:
            total = total + self._squared(J, u, self.factor(samples) * n_out / count)
        return total

    def exactly(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        return self._bent(J, [basis(J.output_shape, J, i) for i in range(size(J.output_shape))], 1.0)

    def _directions(self, J: Linearization) -> Iterator[Tensor]:
        if self.projections == "all":
            return (basis(J.output_shape, J, i) for i in range(J.output_shape[1:].numel()))
        return (normalized(self.random(J.output_shape, J)) for _ in range(self.projections))

    def _bent(self, J: Linearization, us: list[Tensor], factor: float) -> Tensor:
        """Where the slope of each sample is known only after its norm."""
        with torch.no_grad():
            cs = [J.vjp(u) for u in us]
            squares = torch.stack([flat(c).square().sum(1) for c in cs]).sum(0)
        return self.carried(J, factor * squares, [(2 * factor * u, c) for u, c in zip(us, cs, strict=True)])

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
