"""How good a penalty's estimate is, what it weighs and what it costs, from a look at a few samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Report:
    """What `penalty.report(J)` has found. `print` says it in words."""

    norm: str  # what is estimated
    estimated: float  # mean over the samples, as the penalty finds it
    measured: float  # and as it is
    cosine: float  # between the gradients of the penalty and of the same with the norm itself
    samples: int  # that were looked at
    share: float | None = None  # of the penalty in the whole loss, if the loss was given
    cost: float | None = None  # a step that pays over one that does not, if there have been both

    @property
    def error(self) -> float:
        """Of the estimate, relative: −0.1 if it is ten percent too low."""
        return 0.0 if self.measured == self.estimated else self.estimated / self.measured - 1

    def numbers(self) -> dict[str, float]:
        """For a log; what is not known is left out."""
        known = {
            "estimated": self.estimated,
            "measured": self.measured,
            "error": self.error,
            "cosine": self.cosine,
            "share": self.share,
            "cost": self.cost,
        }
        return {name: value for name, value in known.items() if value is not None}

    def __str__(self) -> str:
        parts = [
            f"{self.norm}: {self.estimated:.4g} estimated, {self.measured:.4g} measured on "
            f"{self.samples} samples ({self.error:+.1%})",
            f"cosine of the gradient with the exact one {self.cosine:.3f}",
        ]
        if self.share is not None:
            parts.append(f"{self.share:.1%} of the loss")
        if self.cost is not None:
            parts.append(f"a step that pays takes {self.cost:.2f} times one that does not")
        return "; ".join(parts)


def cosine(value: Tensor, exact: Tensor, leaves: list[Tensor]) -> float:
    """Between their gradients; 1 if both are zero."""
    a, b = (_gradient(v, leaves) for v in (value, exact))
    if not a.any() and not b.any():
        return 1.0
    return float(F.cosine_similarity(a, b, dim=0, eps=torch.finfo(a.dtype).tiny))


def _gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    if not value.requires_grad:
        return torch.zeros(1, dtype=torch.float64, device=value.device).expand(sum(t.numel() for t in leaves))
    found = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten().double() for g in found])
