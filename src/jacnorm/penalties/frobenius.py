"""Hoffman et al.'s penalty on ‖J‖_F², eq. (2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import add
from typing import Literal

import torch
from torch import Tensor

from ..engines.pairing import Pairing, split_factor
from ..errors import InputError
from ..estimators.operator import basis, flat, normalized, size
from ..linearization import Linearization
from .curve import Curve, Shape
from .norm import NormPenalty, Reduction
from .report import MANY
from .settings import Setting, count_or

Directions = Callable[[], Iterable[Tensor]]


class FrobeniusPenalty(NormPenalty):
    """weight · mean_i ‖J(x_i)‖_F², estimated without bias from random u on the unit sphere.

    ‖J‖_F² = n_out · E ‖Jᵀu‖². `penalty(J)` returns a scalar.

    projections
        The number of vectors u per step, or "all". With "all", u are the unit vectors, one per output, and
        the value is exact.
    h
        A function of ‖J‖_F²; "identity" is ‖J‖_F² itself. Any other h of an estimate is biased, so use it
        with projections="all".

    Further arguments are those of `NormPenalty`.
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
        target: float | None = None,
        target_quantile: float | None = None,
    ):
        self.projections = projections  # before the target, which looks at it
        super().__init__(
            weight,
            h=h,
            threshold=threshold,
            reduction=reduction,
            every=every,
            budget=budget,
            fraction=fraction,
            seed=seed,
            target=target,
            target_quantile=target_quantile,
        )

    projections = Setting[int | Literal["all"]](count_or("all"))

    def check_target(self, target: float | None, quantile: float | None) -> None:
        super().check_target(target, quantile)
        if quantile is not None and self.projections != "all":
            raise InputError(
                f"target_quantile={quantile} is of the norms themselves, and from random projections "
                "they scatter: take projections='all', or a target for the mean."
            )

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        us = self._directions(J, self.projections)
        samples, n_out = J.output_shape[0], size(J.output_shape)
        count = n_out if self.projections == "all" else self.projections
        if not self.is_plain:
            return self._bent(J, us, n_out / count)
        values, squares = zip(
            *(self._squared(J, u, self.factor(samples) * n_out / count) for u in us()), strict=True
        )
        self._note(n_out / count * reduce(add, squares))
        return reduce(add, values)

    def exactly(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        n_out = size(J.output_shape)
        us = self._directions(J, "all" if n_out <= MANY else MANY)
        return self._bent(J, us, max(1.0, n_out / MANY))

    def _directions(self, J: Linearization, projections: int | Literal["all"]) -> Directions:
        """A function that yields the vectors u. Unit vectors are made one by one, to save memory."""
        if projections == "all":
            return lambda: (basis(J.output_shape, J, i) for i in range(size(J.output_shape)))
        drawn = [normalized(self.random(J.output_shape, J)) for _ in range(projections)]
        return lambda: drawn

    def _bent(self, J: Linearization, us: Directions, factor: float) -> Tensor:
        """The penalty for any h and reduction, where the slope of a sample is known only after its norm."""
        with torch.no_grad():
            squares = torch.stack([flat(J.vjp(u)).square().sum(1) for u in us()]).sum(0)
        return self.carried(J, factor * squares, (((2 * factor) ** 0.5 * u, None) for u in us()))

    def _squared(self, J: Linearization, u: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        """factor · Σ ‖Jᵀu‖², and ‖Jᵀu‖² of each sample. The gradient of the first is that of
        2 factor · Σ uᵀJ c with c = Jᵀu held fixed."""
        if not torch.is_grad_enabled():
            lengths = flat(J.vjp(u)).square().sum(1)
            return factor * lengths.sum(), lengths
        pairing = Pairing()
        scale, rest = split_factor(2 * factor, J)
        with torch.no_grad():  # √scale in both sweeps, so that their terms need no further factor
            c = J.vjp(scale**0.5 * u, pairing)
            J.jvp(c, pairing)
            lengths = flat(c).square().sum(1) / scale
        again = (lambda: factor * J.vjp(u).square().sum()) if J.is_piecewise_linear else None
        return pairing.handed_over(factor * lengths.sum(), rest, again), lengths

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, projections={self.projections}"
