"""What a case is: a model, made the same each time, and a batch for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 3


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], Any]
    shape: tuple[int, ...]  # of one sample
    training: bool = False

    def make(self) -> tuple[Any, Tensor]:
        """The model in float64 and a batch, the same each time."""
        torch.manual_seed(0)
        model = self.build()
        if isinstance(model, nn.Module):
            model = model.double().train(self.training)
        return model, torch.randn(BATCH, *self.shape, dtype=torch.float64)

    @property
    def conventions(self) -> tuple[str, ...]:
        """What `batch_norm=` may be, where it makes a difference."""
        model = self.build()
        parts = model.modules() if self.training and isinstance(model, nn.Module) else ()
        normed = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts)
        return ("fixed", "flowing") if normed else ("fixed",)

    def __str__(self) -> str:
        return f"{self.name}, training" if self.training else self.name


class Seeded(nn.Module):
    """Draws the same dropout masks each time."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return self.body(x)


def lively(model: nn.Module) -> nn.Module:
    """Norms and parameters that start at one and zero get values that can be mistaken; seeded dropout."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.3)
    return Seeded(model)
