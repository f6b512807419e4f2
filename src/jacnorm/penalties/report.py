"""Reports on a penalty: the error of its estimate, its share of the loss, and its cost, on a few samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engines.ancestry import weights_of
from ..errors import InputError
from ..linearization import Linearization
from ..pytorch.modules import modules_of, unchanged
from ..pytorch.precision import without_autocast
from ..trust.checks import as_tensor, check_count

if TYPE_CHECKING:
    from .norm import NormPenalty

MANY = 100  # up to this many outputs each takes a product; above it, this many random vectors stand for all


@dataclass(frozen=True)
class Report:
    """The result of `penalty.report(J)`. print(report) shows it in words."""

    norm: str  # the name of the norm
    estimated: float  # the estimate of the penalty, mean over the samples
    measured: float  # the exact norm, mean over the samples
    cosine: float  # cosine between the gradient of the penalty and the gradient with the exact norm
    samples: int  # how many samples were measured
    products: int  # products with J or Jᵀ in a step that pays
    share: float | None = None  # penalty / (loss + penalty), if the loss was given
    cost: float | None = None  # time of a step that pays / time of one that does not, if both were measured
    weight: float | None = None  # as it is now, if it is steered to a target
    target: float | None = None

    @property
    def error(self) -> float:
        """The relative error of the estimate: −0.1 if it is ten percent too low."""
        if self.measured == 0:
            return math.copysign(math.inf, self.estimated) if self.estimated else 0.0
        return self.estimated / self.measured - 1

    def numbers(self) -> dict[str, float]:
        """The numbers by name, for a log. Numbers that are unknown or not finite are left out."""
        known = {
            "estimated": self.estimated,
            "measured": self.measured,
            "error": self.error,
            "cosine": self.cosine,
            "products": float(self.products),
            "share": self.share,
            "cost": self.cost,
            "weight": self.weight,
        }
        return {name: value for name, value in known.items() if value is not None and math.isfinite(value)}

    def __str__(self) -> str:
        parts = [
            f"{self.norm}: {self.estimated:.4g} estimated, {self.measured:.4g} measured on "
            f"{self.samples} samples ({self.error:+.1%})",
            f"cosine of the gradient with the exact one {self.cosine:.3f}",
        ]
        if self.weight is not None:
            parts.append(f"weight {self.weight:.3g} for a target of {self.target:.4g}")
        if self.share is not None:
            parts.append(f"{self.share:.1%} of the loss")
        cost = "" if self.cost is None else f", {self.cost:.2f} times the time of one that does not"
        parts.append(f"a step that pays takes {self.products} products with J{cost}")
        return "; ".join(parts)


def look(
    penalty: NormPenalty,
    J: Linearization,
    index: Tensor | None,
    labels: Tensor | None,
    loss: Tensor | float | None,
    samples: int,
) -> Report:
    """`NormPenalty.report`."""
    check_count("samples", samples)
    whole = penalty.checked(J, labels)
    if penalty.weight == 0:
        raise InputError("The weight is 0: there is no penalty to report on.")
    few = torch.arange(min(samples, len(whole.output)), device=whole.device)
    index, labels = rows_of(index, few), rows_of(labels, few)
    with untouched(penalty), unchanged(modules_of(whole.model), whole.device), torch.enable_grad():
        J = whole.subset(few)
        with without_autocast(J.device):
            with counted(J) as products:
                value, estimated = _with_mean(penalty, J, penalty.estimated(J, index, labels))
            exact, measured = _with_mean(penalty, J, penalty.exactly(J, index, labels))
            angle = cosine(value, exact, weights_of(J.output))
    paid = float(value.detach())
    if penalty.reduction in ("sum", "none"):
        paid *= len(whole.output) / len(few)
    return Report(
        type(penalty).__name__,
        estimated,
        measured,
        angle,
        len(few),
        len(products),
        None if loss is None else _share(paid, float(as_tensor(loss).detach())),
        penalty.pace.cost,
        *(None, None) if penalty.steering is None else (penalty.weight, penalty.steering.target),
    )


def rows_of(given: Any, few: Tensor) -> Tensor | None:
    return None if given is None else as_tensor(given)[few.to(as_tensor(given).device)]


@contextmanager
def untouched(penalty: NormPenalty) -> Iterator[None]:
    """Leave the random stream of the penalty, its vectors and the norms of its last step as they are."""
    norms = penalty.norms
    try:
        with penalty.looking(penalty._draws.clone()):
            yield
    finally:
        penalty.norms = norms
        penalty.pace.is_unusual = True  # this step takes longer


@contextmanager
def counted(J: Linearization) -> Iterator[list[None]]:
    """A list that gets one entry per product with J while the context lasts."""
    found: list[None] = []
    take = J._take

    def taking(*given: Any) -> Tensor | None:
        found.append(None)
        return take(*given)

    J._take = taking  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        del J._take


def _with_mean(penalty: NormPenalty, J: Linearization, value: Tensor) -> tuple[Tensor, float]:
    """The penalty as one number, and the mean norm."""
    assert penalty.norms is not None
    return value.sum(), float(penalty.norms.mean())


def _share(paid: float, loss: float) -> float | None:
    return None if paid + loss == 0 else paid / (paid + loss)


def cosine(value: Tensor, exact: Tensor, leaves: list[Tensor]) -> float:
    """The cosine between the gradients of both in the leaves; 1 if both gradients are zero."""
    a, b = (_gradient(v, leaves) for v in (value, exact))
    if not a.any() and not b.any():
        return 1.0
    return float(F.cosine_similarity(a, b, dim=0, eps=torch.finfo(a.dtype).tiny))


def _gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    if not value.requires_grad:
        return torch.zeros(1, dtype=torch.float64, device=value.device).expand(sum(t.numel() for t in leaves))
    found = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten().double() for g in found])
