"""Piecewise linear activations: multiplication with the slope at the recorded point (the paper's Z).

At a kink the slope is the one autograd takes, so that both engines agree everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import decompose
from ..tape import sum_to
from .table import Borrowed, NoRule, piecewise, scaling


@piecewise("relu", inplace=True, borrows=True)
def relu(x: Tensor, inplace: bool = False) -> Any:
    """The mask is y > 0, read off the output where it is needed: one fast kernel and no memory of its own."""
    y = F.relu(x, inplace=inplace)
    kept = Borrowed(y)

    def mask(v: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward(v, kept.tensor, 0)

    return y, mask, mask, kept


@piecewise("leaky_relu")
def leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    slope = torch.full_like(x, negative_slope, requires_grad=False).masked_fill_(x > 0, 1)
    return F.leaky_relu(x, negative_slope), *scaling(slope)


@piecewise("prelu")
def prelu(x: Tensor, weight: Tensor) -> Any:
    """The slope below zero is learnt, so F stays differentiable in it."""
    positive = x > 0
    learnt = weight if weight.numel() == 1 else weight.reshape(-1, *[1] * max(0, x.dim() - 2))

    def slope(v: Tensor) -> Tensor:
        return torch.where(positive, v, v * learnt)

    return F.prelu(x, weight), slope, slope


@piecewise("rrelu", inplace=True)
def rrelu(
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Any:
    before = x.detach()
    drawn = F.rrelu(before, lower, upper, training) / before  # the random slopes, drawn once
    slope = drawn.masked_fill(before == 0, (lower + upper) / 2)
    return (x.mul_(slope) if inplace else x * slope), *scaling(slope)


@piecewise("hardtanh")
def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    return F.hardtanh(x, min_val, max_val), *scaling((x > min_val) & (x < max_val))


@piecewise("relu6")
def relu6(x: Tensor, inplace: bool = False) -> Any:
    return F.relu6(x), *scaling((x > 0) & (x < 6))


@piecewise("hardsigmoid", inplace=True)
def hardsigmoid(x: Tensor, inplace: bool = False) -> Any:
    # The kernel's own 1/6, which is a float32 number in every precision.
    slope = torch.ops.aten.hardsigmoid_backward(torch.ones_like(x), x.detach())
    return decompose.hardsigmoid(x, inplace), *scaling(slope)


@piecewise("threshold")
def threshold(x: Tensor, threshold: float, value: float, inplace: bool = False) -> Any:
    return F.threshold(x, threshold, value), *scaling(x > threshold)


@piecewise("hardshrink")
def hardshrink(x: Tensor, lambd: float = 0.5) -> Any:
    return F.hardshrink(x, lambd), *scaling(x.abs() > lambd)


@piecewise("softshrink")
def softshrink(x: Tensor, lambd: float = 0.5) -> Any:
    return F.softshrink(x, lambd), *scaling(x.abs() > lambd)


@piecewise("abs", "absolute", "__abs__")
def absolute(x: Tensor) -> Any:
    if x.is_complex():
        raise NoRule("abs of complex numbers")
    return x.abs(), *scaling(x.detach().sign())


@piecewise("clamp", "clip")
def clamp(x: Tensor, min: Any = None, max: Any = None) -> Any:
    for bound in (min, max):
        if isinstance(bound, Tensor) and bound.requires_grad:
            raise NoRule("clamp with bounds that need a gradient")
    inside = torch.ones_like(x, dtype=torch.bool)
    if min is not None:
        inside = inside & (x >= min)
    if max is not None:
        inside = inside & (x <= max)
    forward, backward = scaling(inside)
    shape = x.shape
    return x.clamp(min, max), forward, lambda u: sum_to(backward(u), shape)


@piecewise("clamp_min")
def clamp_min(x: Tensor, min: Any) -> Any:
    return clamp(x, min=min)


@piecewise("clamp_max")
def clamp_max(x: Tensor, max: Any) -> Any:
    return clamp(x, max=max)


@piecewise("maximum", "fmax", data=2)
def maximum(x: Tensor, y: Tensor) -> Any:
    return torch.maximum(x, y), *_choosing(x > y, x, y)


@piecewise("minimum", "fmin", data=2)
def minimum(x: Tensor, y: Tensor) -> Any:
    return torch.minimum(x, y), *_choosing(x < y, x, y)


def _choosing(wins: Tensor, x: Tensor, y: Tensor) -> Any:
    """The larger (smaller) of two: each gets its share, a tie is split in halves."""
    shapes = x.shape, y.shape
    share = wins.to(x.dtype).masked_fill_(x == y, 0.5)

    def forward(vx: Tensor | None, vy: Tensor | None) -> Tensor:
        if vx is None or vy is None:
            return vx * share if vy is None else vy * (1 - share)  # type: ignore[operator]
        return vx * share + vy * (1 - share)

    def backward(u: Tensor) -> tuple[Tensor, Tensor]:
        return sum_to(u * share, shapes[0]), sum_to(u * (1 - share), shapes[1])

    return forward, backward
