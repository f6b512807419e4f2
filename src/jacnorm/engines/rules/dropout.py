"""Dropout of every kind: like ReLU, a stored mask (appendix B of the paper)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .table import Call, rule, scaled_by

# The saturation value of SELU. Alpha dropout writes it in dropped places.
ALPHA = -1.7580993408473766


def _dropout(kind: Any) -> Any:
    def apply(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0:
            return Call(lambda t: t, lambda c: c, y=x)
        # Dropout of ones draws the same mask as dropout of x.
        kept = kind(torch.ones_like(x, requires_grad=False), p, True)
        return scaled_by(kept, x.mul_(kept) if inplace else x * kept)

    return apply


for _name in ("dropout", "dropout1d", "dropout2d", "dropout3d"):
    rule(_name, inplace=True, runs=True)(_dropout(getattr(F, _name)))
rule("feature_dropout", inplace=True, runs=True)(_dropout(torch.feature_dropout))


def _alpha_dropout(kind: Any) -> Any:
    def apply(x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
        if not training or p == 0:
            return Call(lambda t: t, lambda c: c, y=x)
        scale = 0.0 if p == 1 else ((1 - p) * (1 + p * ALPHA**2)) ** -0.5
        shift = kind(torch.zeros_like(x, requires_grad=False), p, True)
        kept = (shift > 0).to(x.dtype) * scale  # dropped places are shifted below zero
        y = x.mul_(kept).add_(shift) if inplace else x * kept + shift
        return scaled_by(kept, y)

    return apply


for _name in ("alpha_dropout", "feature_alpha_dropout"):
    rule(_name, inplace=True, runs=True)(_alpha_dropout(getattr(F, _name)))
