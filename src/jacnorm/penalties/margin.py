"""The first-order radius of each sample, which the penalty enlarges."""

from __future__ import annotations

from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from ..engines.pairing import Pairing
from ..errors import InputError
from ..estimators.operator import column
from ..linearization import Linearization
from ..trust.checks import check_count, check_labels, check_positive
from .gradient import check_output_of, dual
from .norm import Common, NormPenalty
from .report import MANY
from .settings import Setting


def _order(name: str, norm: float | str) -> float:
    if str(norm) not in ("2", "2.0", "inf"):
        raise InputError(f"{name}={norm!r}: choose 2 or 'inf', the norm of changes of x.")
    return float(norm)


class MarginPenalty(NormPenalty):
    """weight · mean_i max(0, radius − r_i) with the first-order radius

        r_i = min_j (f_y − f_j) / ‖∇ₓ(f_y − f_j)‖    over the classes j other than the label y.

    `penalty(J, labels=y)` returns a scalar. If f were linear, r_i would be the distance from x_i to the
    nearest point where another class has the same score. σ alone does not give this distance, because it
    also depends on the difference of the scores.

    The gradient flows through the numerator (by autograd, from J.output) and through the denominator (with
    u = e_y − e_j and v, the unit gradient, held fixed). Scaling all scores does not change r, so it does not
    reduce the penalty. Samples with r above `radius` have no penalty. A misclassified sample has r = 0 and no
    gradient: a penalty on its distance to the right side would make the function steeper there. The loss
    takes care of these samples. (Elsayed et al., 2018, use such distances as the only loss, with the
    denominator held fixed.)

    radius
        The radius up to which samples are penalized, in the units of x.
    norm
        The norm in which changes of x are measured: 2, or "inf" as in attacks in the ℓ∞ ball. The gradient is
        measured in the dual norm, ℓ2 or ℓ1.
    candidates
        How many classes j are compared: those with the highest scores besides the label. The default is the
        runner-up only. k > 1 costs k more sweeps.
    h
        Another decreasing function of r instead of max(0, radius − r).

    Further arguments are those of `NormPenalty`. Raises `InputError` if the labels do not fit, or if J is not
    the Jacobian of J.output.
    """

    needs_labels = True
    no_target = "of radii larger is better. Set radius=."

    def __init__(
        self,
        weight: float = 0.01,
        radius: float = 1.0,
        *,
        candidates: int = 1,
        norm: float | str = 2,
        **common: Unpack[Common],
    ):
        check_positive("radius", radius)
        self.is_usual = "h" not in common
        super().__init__(weight, **{"h": partial(_shortfall, radius=radius), **common})  # type: ignore[arg-type]
        self.radius, self.candidates, self.norm = radius, candidates, norm
        self._check_shape()

    candidates = Setting[int](check_count)
    norm = Setting[Any](_order)

    @property
    def p(self) -> float:
        """The norm of the gradient."""
        return 2.0 if self.norm == 2 else 1.0

    @property
    def radius(self) -> float:
        return self._radius

    @radius.setter
    def radius(self, radius: float) -> None:
        check_positive("radius", radius)
        self._radius = radius
        if self.is_usual:
            self.h = partial(_shortfall, radius=radius)

    def _check_shape(self) -> None:
        """A larger radius is better: the penalty must not rise with it."""
        if self.reduction == "none":  # values to look at
            return
        radii = self.radius * torch.tensor([0.1, 0.5, 0.9, 2.0], device="cpu")
        slopes = self.slopes(radii)
        if (slopes > 0).any():
            at, slope = next((r, s) for r, s in zip(radii.tolist(), slopes.tolist(), strict=True) if s > 0)
            raise InputError(
                f"h={self.h!r} rises with r (its slope at {at:g} is {slope:g}), so that training "
                "would bring samples closer to the boundary. Leave h out, or give a function that falls, "
                "such as lambda r: torch.exp(-r). To measure radii take reduction='none'."
            )

    def forward(self, J: Linearization, index: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        return self._among(self.candidates, J, labels)

    def exactly(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        return self._among(max(self.candidates, MANY), J, labels)

    def _among(self, candidates: int, J: Linearization, labels: Tensor | None) -> Tensor:
        check_output_of(J, "MarginPenalty")
        own = check_labels(labels, J.output_shape).to(J.device)[:, None]
        other, pairing = self._nearest(candidates, J, own), Pairing()
        margin = _margins(J.output.to(J.dtype), own, other)[:, 0]
        with torch.no_grad():
            u = _difference(J, own, other)
            length, s = dual(J.vjp(u, pairing), self.p)
            length = length.clamp_min(torch.finfo(J.dtype).eps)  # it is zero if x has no influence
        r = torch.relu(margin) / length
        v = s * column(-r.detach() / length, s)
        return self.carried(J, r, [(u, v)], pairing)

    @torch.no_grad()
    def _nearest(self, candidates: int, J: Linearization, own: Tensor) -> Tensor:
        """The class with the smallest radius among the candidates, (B, 1)."""
        scores = J.output.detach().to(J.dtype)
        count = min(candidates, scores.shape[1] - 1)
        others = scores.scatter(1, own, -float("inf")).topk(count, 1).indices
        if count == 1:
            return others
        lengths = [dual(J.vjp(_difference(J, own, j[:, None])), self.p)[0] for j in others.unbind(1)]
        length = torch.stack(lengths, 1).clamp_min(torch.finfo(J.dtype).eps)
        nearest = (_margins(scores, own, others) / length).argmin(1, keepdim=True)
        return others.gather(1, nearest)

    def extra_repr(self) -> str:
        shape = f"weight={self.weight}, radius={self.radius}" if self.is_usual else super().extra_repr()
        return f"{shape}, candidates={self.candidates}, norm={self.norm:g}"


def _shortfall(r: Tensor, radius: float) -> Tensor:
    return torch.relu(radius - r)


def _margins(scores: Tensor, own: Tensor, others: Tensor) -> Tensor:
    return scores.gather(1, own) - scores.gather(1, others)


def _difference(J: Linearization, own: Tensor, other: Tensor) -> Tensor:
    """e_y − e_j of each sample."""
    zeros = torch.zeros(J.output_shape, dtype=J.dtype, device=J.device)
    return zeros.scatter(1, own, 1.0).scatter(1, other, -1.0)
