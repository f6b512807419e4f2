"""Layers rewritten for the autograd engine, where PyTorch's higher derivatives are wrong or missing.

The second derivative of fused norms takes the mean and variance for constants, so that the gradient of
J v, a third derivative, is silently wrong (it is tested in tests/penalties/test_gradients.py). That of
`normalize` is NaN at zero, and `hardsigmoid` has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: bool,
    **__: bool,
) -> Tensor:
    y = _standardized(x, list(range(-len(normalized_shape), 0)), eps)
    return _affine(y, weight, bias).to(x.dtype)


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: bool,
    **__: bool,
) -> Tensor:
    y = _standardized(x.reshape(len(x), num_groups, -1), [2], eps).reshape(x.shape)
    return _affine(y, *(_per_channel(p, x) for p in (weight, bias))).to(x.dtype)


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:  # linear
        return F.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    if running_mean is not None:
        F.instance_norm(x.detach(), running_mean, running_var, momentum=momentum)  # for the update of these
    return group_norm(x, x.shape[1], weight, bias, eps)


def normalize(
    x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """Without the root at zero: Swin V2 normalizes keys that padding has made zero."""
    if p != 2 or out is not None:
        return F.normalize(x, p, dim, eps, out)
    square = _at_least_single(x).square().sum(dim, keepdim=True)
    return x / square.clamp_min(eps**2).sqrt().to(x.dtype)


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    y = _Hardsigmoid.apply(x)
    return x.copy_(y) if inplace else y


class _Hardsigmoid(torch.autograd.Function):
    """Its slope is constant on each piece, so that the second derivative is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(aten.hardsigmoid_backward(torch.ones_like(x), x))
        return F.hardsigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grad * slope


def _standardized(x: Tensor, over: list[int], eps: float) -> Tensor:
    x = _at_least_single(x)
    centred = x - x.mean(over, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(over, keepdim=True) + eps)


def _at_least_single(x: Tensor) -> Tensor:
    """Sums of squares are taken in single precision, as the fused kernels do."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _per_channel(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.view(-1, *[1] * (x.dim() - 2))


def elementary(name: str, func: Callable[..., Any]) -> Callable[..., Any] | None:
    """What to call in the place of `func`, if it must not be called itself."""
    return None if func is torch.instance_norm else ELEMENTARY.get(name)  # it has another signature


ELEMENTARY: dict[str, Callable[..., Tensor]] = {
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "normalize": normalize,
    "hardsigmoid": hardsigmoid,
}
