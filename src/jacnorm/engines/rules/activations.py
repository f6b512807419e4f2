"""Piecewise linear activations: multiplication with the slope at the recorded point (the paper's Z).

At a kink the slope is that of autograd, so rules and autograd agree everywhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tape import sum_to
from .table import Borrowed, Call, NoRule, rule, scaled_by


@rule("relu", inplace=True, runs=True)
def relu(x: Tensor, inplace: bool = False) -> Call:
    """The mask is y > 0. It is computed from the output when needed: one fast kernel, and no extra memory."""
    y = torch.relu_(x) if inplace else torch.relu(x)
    kept = Borrowed(y)

    def mask(v: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward(v, kept.like(v), 0)

    return Call(mask, mask, y=y, borrows=kept)


@rule("leaky_relu", inplace=True, runs=True)
def leaky_relu(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Call:
    """The slope follows from the sign of the output, as in ReLU, or of the input if the signs differ."""
    alike = negative_slope >= 0
    before = None if alike else Borrowed(x)
    y = F.leaky_relu(x, negative_slope, inplace)
    kept = before or Borrowed(y)

    def scale(v: Tensor) -> Tensor:
        return torch.ops.aten.leaky_relu_backward(v, kept.like(v), negative_slope, alike)

    return Call(scale, scale, y=y, borrows=kept)


@rule("prelu", runs=True)
def prelu(x: Tensor, weight: Tensor) -> Call:
    """The slope below zero is a parameter."""
    positive, shape = x > 0, weight.shape
    spread = torch.Size([] if weight.numel() == 1 else [-1, *[1] * max(0, x.dim() - 2)])

    def slope(weight: Tensor, v: Tensor) -> Tensor:
        return torch.where(positive, v, v * weight.view(spread))

    def terms(weight: Tensor, c: Tensor, t: Tensor) -> list[Tensor]:
        below = torch.where(positive, 0, c * t)
        return [sum_to(below, weight.view(spread).shape).view(shape)]

    return Call(slope, slope, (weight,), terms, y=F.prelu(x, weight))


@rule("rrelu", inplace=True, runs=True)
def rrelu(
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Call:
    before = x.detach()
    drawn = F.rrelu(before, lower, upper, training) / before  # the random slopes, drawn once
    slope = drawn.masked_fill(before == 0, (lower + upper) / 2)
    return scaled_by(slope, x.mul_(slope) if inplace else x * slope)


@rule("hardtanh", runs=True)
def hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Call:
    return scaled_by((x > min_val) & (x < max_val), F.hardtanh(x, min_val, max_val))


@rule("relu6", runs=True)
def relu6(x: Tensor) -> Call:
    return scaled_by((x > 0) & (x < 6), F.relu6(x))


@rule("hardsigmoid", inplace=True, runs=True)
def hardsigmoid(x: Tensor, inplace: bool = False) -> Call:
    # The kernel's own 1/6, which is a float32 number in every precision.
    slope = torch.ops.aten.hardsigmoid_backward(torch.ones_like(x), x.detach())
    return scaled_by(slope, F.hardsigmoid(x, inplace))


@rule("threshold", runs=True)
def threshold(x: Tensor, threshold: float, value: float) -> Call:
    return scaled_by(x > threshold, F.threshold(x, threshold, value))


@rule("hardshrink", runs=True)
def hardshrink(x: Tensor, lambd: float = 0.5) -> Call:
    return scaled_by(x.abs() > lambd, F.hardshrink(x, lambd))


@rule("softshrink", runs=True)
def softshrink(x: Tensor, lambd: float = 0.5) -> Call:
    return scaled_by(x.abs() > lambd, F.softshrink(x, lambd))


@rule("abs", "absolute", "__abs__", runs=True)
def absolute(x: Tensor) -> Call:
    if x.is_complex():
        raise NoRule("abs of complex numbers")
    return scaled_by(x.detach().sign(), x.abs())


@rule("clamp", "clip", runs=True)
def clamp(x: Tensor, min: Any = None, max: Any = None) -> Call:
    """F is a mask, even if the bounds are parameters."""
    inside = torch.ones_like(x, dtype=torch.bool)
    if min is not None:
        inside = inside & (x >= min)
    if max is not None:
        inside = inside & (x <= max)
    shape = x.shape
    return Call(lambda t: t * inside, lambda c: sum_to(c * inside, shape), y=x.clamp(min, max))


@rule("clamp_min", runs=True)
def clamp_min(x: Tensor, min: Any) -> Call:
    return clamp(x, min=min)


@rule("clamp_max", runs=True)
def clamp_max(x: Tensor, max: Any) -> Call:
    return clamp(x, max=max)


@rule("maximum", "fmax", data=2, runs=True)
def maximum(x: Tensor, y: Tensor) -> Call:
    return _choosing(torch.maximum(x, y), x > y, x, y)


@rule("minimum", "fmin", data=2, runs=True)
def minimum(x: Tensor, y: Tensor) -> Call:
    return _choosing(torch.minimum(x, y), x < y, x, y)


def _choosing(result: Tensor, wins: Tensor, x: Tensor, y: Tensor) -> Call:
    """The larger (or smaller) of two tensors. The chosen one gets the gradient; a tie is split in halves."""
    shapes = x.shape, y.shape
    share = wins.to(x.dtype).masked_fill_(x == y, 0.5)

    def forward(vx: Tensor | None, vy: Tensor | None) -> Tensor:
        if vx is None or vy is None:
            return vx * share if vy is None else vy * (1 - share)  # type: ignore[operator]
        return vx * share + vy * (1 - share)

    def backward(u: Tensor) -> tuple[Tensor, Tensor]:
        return sum_to(u * share, shapes[0]), sum_to(u * (1 - share), shapes[1])

    return Call(forward, backward, y=result)
