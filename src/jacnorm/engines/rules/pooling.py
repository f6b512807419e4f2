"""Pooling, and the sliding windows it is made of."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .maxpool import TwoByTwo, is_two_by_two
from .table import Call, rule

aten = torch.ops.aten


def _max_pool(pool: Any, dims: int) -> Any:
    def apply(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        if dims == 2 and is_two_by_two(x, kernel_size, stride, padding, dilation, ceil_mode):
            y, chosen = TwoByTwo.apply(x)
        else:
            y, chosen = pool(x, kernel_size, stride or None, padding, dilation, ceil_mode, True)
        apart = dilation in (1, (1, 1)) and (not stride or stride == kernel_size)  # most pools
        return selecting((y, chosen) if return_indices else y, chosen, x, dims, apart)

    return apply


def _adaptive_max_pool(pool: Any, dims: int) -> Any:
    def apply(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        y, chosen = pool(x, output_size, True)
        return selecting((y, chosen) if return_indices else y, chosen, x, dims)

    return apply


def _returning_indices(apply: Any) -> Any:
    def with_indices(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("return_indices", None)
        return apply(*args, **kwargs, return_indices=True)

    return with_indices


for _dims in (1, 2, 3):
    for _name, _make in (("max_pool", _max_pool), ("adaptive_max_pool", _adaptive_max_pool)):
        _rule = _make(getattr(F, f"{_name}{_dims}d"), _dims)
        rule(f"{_name}{_dims}d", runs=True)(_rule)
        rule(f"{_name}{_dims}d_with_indices", runs=True)(_returning_indices(_rule))


def selecting(result: Any, chosen: Tensor, x: Tensor, dims: int, apart: bool = False) -> Call:
    """F: y = v[I]. Fᵀ: unpooling, adding up where windows that are not `apart` chose the same place."""
    index = chosen.flatten(-dims)
    shape = x.shape

    def forward(v: Tensor) -> Tensor:
        return v.flatten(-dims).gather(-1, index).view(chosen.shape)

    def backward(u: Tensor) -> Tensor:
        zeros = u.new_zeros(*shape[:-dims], shape[-dims:].numel())
        unpool = zeros.scatter if apart else zeros.scatter_add  # in place they are slow under vmap
        return unpool(-1, index, u.flatten(-dims)).view(shape)

    return Call(forward, backward, y=result)


@rule("avg_pool1d")
def avg_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    window = (_one(kernel_size), _one(stride or kernel_size), _one(padding))
    row = [[low, size] for low, size in zip((1, 1, 0), window, strict=True)]
    backward = avg_pool2d(x.unsqueeze(-2), *row, ceil_mode, count_include_pad).pull
    rest = (ceil_mode, count_include_pad)
    return Call(
        lambda v: F.avg_pool1d(v, *window, *rest),
        lambda u: backward(u.unsqueeze(-2)).squeeze(-2),
    )


def _avg_pool(pool: Any, transpose: Any) -> Any:
    def apply(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        rest = (_all(padding), ceil_mode, count_include_pad, divisor_override)
        window = (_all(kernel_size), _all(stride or kernel_size), *rest)
        shape = x.shape
        return Call(
            lambda v: pool(v, *window),
            lambda u: transpose(u, u.new_empty(shape), *window),
        )

    return apply


avg_pool2d = _avg_pool(F.avg_pool2d, aten.avg_pool2d_backward)
rule("avg_pool2d")(avg_pool2d)
rule("avg_pool3d")(_avg_pool(F.avg_pool3d, aten.avg_pool3d_backward))


@rule("adaptive_avg_pool1d")
def adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Any:
    shape = x.unsqueeze(-2).shape

    def backward(u: Tensor) -> Tensor:
        row = aten._adaptive_avg_pool2d_backward(u.unsqueeze(-2), u.new_empty(shape))
        return row.squeeze(-2)

    return Call(lambda v: F.adaptive_avg_pool1d(v, output_size), backward)


def _adaptive_avg_pool(pool: Any, transpose: Any) -> Any:
    def apply(x: Tensor, output_size: Any) -> Any:
        shape = x.shape
        return Call(lambda v: pool(v, output_size), lambda u: transpose(u, u.new_empty(shape)))

    return apply


rule("adaptive_avg_pool2d")(_adaptive_avg_pool(F.adaptive_avg_pool2d, aten._adaptive_avg_pool2d_backward))
rule("adaptive_avg_pool3d")(_adaptive_avg_pool(F.adaptive_avg_pool3d, aten._adaptive_avg_pool3d_backward))


@rule("unfold")
def unfold(x: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    window, size = (kernel_size, dilation, padding, stride), x.shape[-2:]
    return Call(lambda v: F.unfold(v, *window), lambda u: F.fold(u, size, *window))


@rule("fold")
def fold(
    x: Tensor,
    output_size: Any,
    kernel_size: Any,
    dilation: Any = 1,
    padding: Any = 0,
    stride: Any = 1,
) -> Any:
    window = (kernel_size, dilation, padding, stride)
    return Call(lambda v: F.fold(v, output_size, *window), lambda u: F.unfold(u, *window))


def _one(value: Any) -> int:
    return value if isinstance(value, int) else value[0]


def _all(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)
