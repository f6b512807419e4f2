"""Linear layers, convolutions and their transposes, products with a constant matrix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tape import sum_to
from . import one_channel
from .table import NoRule, linear, multilinear

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@linear("linear", weighted=True)
def linear_layer(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """G: Linear(x, W, b). F: Linear(v, W, 0). Fᵀ: Linear(u, Wᵀ, 0)."""
    if weight.dim() != 2:
        raise NoRule("a linear layer whose weight is a vector")
    return (lambda v: F.linear(v, weight)), (lambda u: F.linear(u, weight.t()))


@linear("conv1d", "conv2d", "conv3d", weighted=True)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """G: Conv(x, W, b). F: Conv(v, W, 0). Fᵀ: ConvTranspose(u, W, 0)."""
    dims = _spatial_dims(x, weight)
    s, d = _each(stride, dims), _each(dilation, dims)
    reach = [d[i] * (weight.shape[2 + i] - 1) for i in range(dims)]
    before = _padding_before(padding, reach)
    size = x.shape[2:]

    def forward(v: Tensor) -> Tensor:
        return CONV[dims](v, weight, None, stride, padding, dilation, groups)

    def backward(u: Tensor) -> Tensor:
        # Rows that a stride larger than one never reached come back as output padding; the odd row
        # that padding="same" adds at the end is cut off.
        shortest = [(u.shape[2 + i] - 1) * s[i] - 2 * before[i] + reach[i] + 1 for i in range(dims)]
        missing = [max(0, n - m) for n, m in zip(size, shortest, strict=True)]
        y = CONV_TRANSPOSE[dims](u, weight, None, s, before, missing, groups, d)
        return _crop(y, size)

    if one_channel.is_one_channel(x, weight, stride, padding, dilation):
        return one_channel.convolution(x, weight, bias, tuple(before), forward, backward)
    return forward, backward


@linear("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", weighted=True)
def transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """G: ConvTranspose(x, W, b). F: the same without b. Fᵀ: Conv(u, W, 0)."""
    dims, size = _spatial_dims(x, weight), x.shape[2:]

    def forward(v: Tensor) -> Tensor:
        layer = CONV_TRANSPOSE[dims]
        return layer(v, weight, None, stride, padding, output_padding, groups, dilation)

    def backward(u: Tensor) -> Tensor:
        return _crop(CONV[dims](u, weight, None, stride, padding, dilation, groups), size)

    return forward, backward


@multilinear("matmul", "__matmul__", "bmm", "mm", "mv")
def product(position: int, x: Tensor, y: Tensor) -> Any:
    """F: v y or x v. Fᵀ: u yᵀ or xᵀ u."""
    if x.dim() < 2:
        raise NoRule("a product with a vector on the left mixes the samples")
    if position == 1:
        if y.dim() < 2:
            raise NoRule("a product with a vector on the right mixes the samples")
        return (lambda v: x @ v), (lambda u: sum_to(x.mT @ u, y.shape))
    if y.dim() == 1:
        return (lambda v: v @ y), (lambda u: u.unsqueeze(-1) * y)
    return (lambda v: v @ y), (lambda u: sum_to(u @ y.mT, x.shape))


@multilinear("addmm")
def shifted_product(
    position: int, bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    """G: beta·b + alpha·x y. F: alpha·v y. Fᵀ: alpha·u yᵀ."""
    if position != 1:
        raise NoRule("addmm with a bias or a second factor that depends on the input")
    return (lambda v: alpha * (v @ y)), (lambda u: alpha * (u @ y.mT))


@multilinear("einsum")
def einsum(position: int, equation: str, *operands: Any) -> Any:
    """F: the same contraction of v. Fᵀ: the contraction with that operand and the output swapped."""
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        raise NoRule("einsum called with a list of operands")
    terms, _, result = equation.replace(" ", "").partition("->")
    inputs = terms.split(",")
    mine = inputs[position - 1]
    constants = inputs[: position - 1] + inputs[position:]
    known = set(result).union(*constants)
    if "." in equation or not result or len(set(mine)) < len(mine) or not set(mine) <= known:
        raise NoRule(f"einsum {equation!r} has no simple transpose")
    sizes = {(i, n) for t, o in zip(inputs, operands, strict=True) for i, n in zip(t, o.shape, strict=True)}
    if len({i for i, _ in sizes}) < len(sizes):
        raise NoRule(f"einsum {equation!r} broadcasts")
    others = [*operands[: position - 1], *operands[position:]]
    transposed = ",".join([result, *constants]) + "->" + mine

    def forward(v: Tensor) -> Tensor:
        return torch.einsum(equation, *operands[: position - 1], v, *operands[position:])

    return forward, (lambda u: torch.einsum(transposed, u, *others))


def _spatial_dims(x: Tensor, weight: Tensor) -> int:
    dims = weight.dim() - 2
    if x.dim() != weight.dim():
        raise NoRule(f"a convolution of an input without batch axis, shape {tuple(x.shape)}")
    return dims


def _each(value: Any, dims: int) -> list[int]:
    values = [value] * dims if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _padding_before(padding: Any, reach: list[int]) -> list[int]:
    if padding == "same":
        return [total // 2 for total in reach]
    return [0] * len(reach) if padding == "valid" else _each(padding, len(reach))


def _crop(y: Tensor, size: torch.Size) -> Tensor:
    for axis, length in enumerate(size, start=2):
        if y.shape[axis] > length:
            y = y.narrow(axis, 0, length)
    return y
