"""What sweeps in half precision bring, on this model and this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..engines.lowered import pays
from ..linearization import Linearization
from ..penalties import SpectralPenalty
from ..pytorch.half import why_not
from ..pytorch.modules import modules_of, named_parameters, unchanged

HALF = torch.bfloat16
Linearize = Callable[[torch.dtype | None], Linearization]


@dataclass(frozen=True)
class Half:
    """A step with penalty(J, index=idx) and precision=torch.bfloat16."""

    seconds: float
    cosine: float | None  # between the penalty's gradient in bfloat16 and in float32; None without gradients


def why_no_half(J: Linearization) -> str | None:
    """Why precision=torch.bfloat16 is of no use, if that is known without a measurement."""
    if J.is_half:
        return "changes nothing: the model runs in half precision"
    if J.dtype != torch.float32:
        return f"is for models in float32: this one runs in {str(J.dtype).removeprefix('torch.')}"
    if J.tape is None or not pays(J.tape.steps, J.tape.values()):
        return "changes nothing: no linear layer, convolution or product here is large enough for it"
    return why_not(HALF, J.device)


def cosine(model: Any, linearize: Linearize) -> float | None:
    """Of the penalty's gradient in half precision with that in float32; None where there is none."""
    single, half = (_gradient(model, linearize, precision) for precision in (None, HALF))
    if not single.any() or not half.any():
        return None
    return float(torch.cosine_similarity(single.double(), half.double(), dim=0))


def _gradient(model: Any, linearize: Linearize, precision: torch.dtype | None) -> Tensor:
    """Of a new penalty, whose first vectors are the same each time. So are dropout's masks."""
    modules = modules_of(model)
    weights = [p for _, p in named_parameters(modules) if p.requires_grad]
    with warnings.catch_warnings(action="ignore"), unchanged(modules, weights[0].device):
        value = SpectralPenalty()(linearize(precision))
        if not value.requires_grad:
            return torch.zeros(1, device=value.device)
        found = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found])
