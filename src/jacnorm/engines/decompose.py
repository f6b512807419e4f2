"""Fused layers rewritten in elementary operations, for the autograd engine.

PyTorch's second derivative of these takes the mean and variance for constants, so that the gradient of
J v, a third derivative, is silently wrong (it is tested in tests/penalties/test_gradients.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: bool,
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
    if not use_input_stats or running_mean is not None:  # linear, or with statistics to update
        return torch.nn.functional.instance_norm(
            x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )
    return group_norm(x, x.shape[1], weight, bias, eps)


def _standardized(x: Tensor, over: list[int], eps: float) -> Tensor:
    x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x  # as the fused kernels do
    centred = x - x.mean(over, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(over, keepdim=True) + eps)


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _per_channel(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.view(-1, *[1] * (x.dim() - 2))


ELEMENTARY: dict[str, Callable[..., Tensor]] = {
    "layer_norm": layer_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
}
