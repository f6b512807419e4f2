"""Linear layers, convolutions and their transposes, products of matrices."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tape import sum_to
from . import one_channel
from .products import bilinear, check_factors, conjugate, plus_product
from .table import REST, Call, NoRule, rule

aten = torch.ops.aten
CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@rule("linear", data=2, is_layer=True, product=True)
def linear_layer(followed: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    """G: Linear(x, W, b). F: Linear(t, W, 0). Fᵀ: Linear(c, Wᵀ, 0)."""
    if weight.dim() != 2:
        raise NoRule("a linear layer whose weight is a vector")
    return bilinear(followed, x, weight, F.linear, torch.matmul, outer_product)


def outer_product(c: Tensor, t: Tensor) -> Tensor:
    """Σ c ⊗ t over samples and tokens."""
    if c.dim() == 1:
        return torch.outer(c, t)
    return c.reshape(-1, c.shape[-1]).t() @ t.reshape(-1, t.shape[-1])


@rule("conv1d", "conv2d", "conv3d", data=2, is_layer=True, product=True)
def convolution(
    followed: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call:
    """G: Conv(x, W, b). F: Conv(t, W, 0). Fᵀ: ConvTranspose(c, W, 0)."""
    dims = _spatial_dims(x, weight)
    s, d = _each(stride, dims), _each(dilation, dims)
    reach = [d[i] * (weight.shape[2 + i] - 1) for i in range(dims)]
    before = _padding_before(padding, reach)
    size, shape = x.shape[2:], weight.shape
    is_lopsided = padding == "same" and any(total % 2 for total in reach)

    def push(t: Tensor, weight: Tensor) -> Tensor:
        return CONV[dims](t, weight, None, stride, padding, dilation, groups)

    def pull(c: Tensor, weight: Tensor) -> Tensor:
        # Rows that a stride above one never reached become output padding. The odd row that
        # padding="same" adds at the end is cut off.
        shortest = [(c.shape[2 + i] - 1) * s[i] - 2 * before[i] + reach[i] + 1 for i in range(dims)]
        missing = [max(0, n - m) for n, m in zip(size, shortest, strict=True)]
        y = CONV_TRANSPOSE[dims](c, weight, None, s, before, missing, groups, d)
        return _crop(y, size)

    def outer(c: Tensor, t: Tensor) -> Tensor:
        like = c.new_empty(shape)
        none = [0] * dims
        return aten.convolution_backward(
            c, t, like, None, s, before, d, False, none, groups, [False, True, False]
        )[1]

    if not followed[1] and one_channel.is_one_channel(x, weight, stride, padding, dilation):
        return one_channel.convolution(x, weight, bias, tuple(before), push, pull, outer)
    call = bilinear(followed, x, weight, push, pull, outer)
    if is_lopsided:
        if followed[1]:
            raise NoRule(
                "a convolution with padding='same', an even kernel and a weight that depends on the input"
            )
        call.terms = None
    return call


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", data=2, is_layer=True, product=True)
def transposed_convolution(
    followed: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Call:
    """G: ConvTranspose(x, W, b). F: the same without b. Fᵀ: Conv(c, W, 0)."""
    dims, size, shape = _spatial_dims(x, weight), x.shape[2:], weight.shape
    each = [_each(value, dims) for value in (stride, padding, dilation)]

    def push(t: Tensor, weight: Tensor) -> Tensor:
        layer = CONV_TRANSPOSE[dims]
        return layer(t, weight, None, stride, padding, output_padding, groups, dilation)

    def pull(c: Tensor, weight: Tensor) -> Tensor:
        return _crop(CONV[dims](c, weight, None, stride, padding, dilation, groups), size)

    def outer(c: Tensor, t: Tensor) -> Tensor:
        like, more = c.new_empty(shape), _each(output_padding, dims)
        return aten.convolution_backward(c, t, like, None, *each, True, more, groups, [False, True, False])[1]

    return bilinear(followed, x, weight, push, pull, outer)


@rule("matmul", "__matmul__", "bmm", "mm", "mv", data=2, product=True, of_complex=True)
def product(followed: Any, x: Tensor, y: Tensor) -> Call:
    """F: t y + x t. Fᵀ: c yᵀ and xᵀ c."""
    if x.dim() < 2:
        raise NoRule("a product with a vector on the left")
    check_factors(x, y)
    x_shape, y_shape = x.shape, y.shape
    if y.dim() == 1:
        return bilinear(
            followed, x, y, torch.matmul, _times_row, lambda c, x: sum_to(_column(c) * conjugate(x), y_shape)
        )
    return bilinear(
        followed,
        x,
        y,
        torch.matmul,
        lambda c, y: sum_to(c @ conjugate(y).mT, x_shape),
        lambda c, x: _gathered(conjugate(x), c, y_shape),
    )


@rule("__rmatmul__", data=2, product=True)
def reversed_product(followed: Any, y: Tensor, x: Tensor) -> Call:
    call = product(followed[::-1], x, y)
    swapped = Call(
        lambda *values: call.push(*values[:-2], values[-1], values[-2]),
        lambda *values: call.pull(*values)[::-1],
        call.reads,
    )
    if call.terms is not None:
        terms = call.terms
        swapped.terms = lambda *values: terms(*values[:-2], values[-1], values[-2])
    return swapped


def _column(c: Tensor) -> Tensor:
    return c.unsqueeze(-1)


def _times_row(c: Tensor, y: Tensor) -> Tensor:
    return c.unsqueeze(-1) * conjugate(y)


def _gathered(x: Tensor, c: Tensor, shape: torch.Size) -> Tensor:
    """xᵀ c, summed over the axes along which y was broadcast."""
    if len(shape) == 2 and x.shape[:-1] == c.shape[:-1]:
        return x.reshape(-1, x.shape[-1]).t() @ c.reshape(-1, c.shape[-1])
    return sum_to(x.mT @ c, shape)


@rule("addmm", "baddbmm", data=3, product=True)
def shifted_product(
    followed: Any, bias: Tensor, x: Tensor, y: Tensor, *, beta: float = 1, alpha: float = 1
) -> Call:
    """G: beta·b + alpha·x y."""
    inner = product(followed[1:], x, y) if any(followed[1:]) else None
    shape = torch.broadcast_shapes(bias.shape, (*x.shape[:-1], y.shape[-1]))
    return plus_product(followed, bias, inner, shape, beta, alpha)


@rule("einsum", data=REST, product=True, of_complex=True)
def einsum(followed: Any, equation: str, *operands: Any) -> Call:
    """F: the sum over the operands of the contraction with that operand replaced by its tangent. Fᵀ: the
    contraction with that operand and the output swapped."""
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        raise NoRule("einsum called with a list of operands")
    check_factors(*operands)
    terms, _, result = equation.replace(" ", "").partition("->")
    inputs = terms.split(",")
    sizes = {(i, n) for t, o in zip(inputs, operands, strict=True) for i, n in zip(t, o.shape, strict=False)}
    for k, mine in enumerate(inputs):
        known = set(result).union(*inputs[:k], *inputs[k + 1 :])
        if "." in equation or not result or len(set(mine)) < len(mine) or not set(mine) <= known:
            raise NoRule(f"einsum {equation!r} has no simple transpose")
    if len({i for i, _ in sizes}) < len(sizes):
        raise NoRule(f"einsum {equation!r} broadcasts")
    if len(set(result)) < len(result):
        raise NoRule(f"einsum {equation!r} has no simple transpose")
    count, positions = len(operands), [k for k, is_followed in enumerate(followed) if is_followed]

    def pull_one(k: int, c: Tensor, values: Any) -> Tensor:
        others = [*inputs[:k], *inputs[k + 1 :]]
        transposed = ",".join([result, *others]) + "->" + inputs[k]
        return torch.einsum(transposed, c, *map(conjugate, values[:k]), *map(conjugate, values[k + 1 :]))

    def push(*values: Any) -> Tensor:
        known, ts = values[:count], values[count:]
        pieces = [torch.einsum(equation, *known[:k], ts[k], *known[k + 1 :]) for k in positions]
        return sum(pieces[1:], pieces[0])

    def pull(*values: Any) -> list[Tensor | None]:
        known, c = values[:count], values[count]
        return [pull_one(k, c, known) if followed[k] else None for k in range(count)]

    def gradient(j: int, known: Any, c: Tensor, ts: Any) -> Tensor | None:
        pieces = [
            pull_one(j, c, [ts[k] if i == k else value for i, value in enumerate(known)])
            for k in positions
            if k != j
        ]
        return sum(pieces[1:], pieces[0]) if pieces else None

    return Call(
        push,
        pull,
        reads=operands,
        terms=lambda *v: [gradient(j, v[:count], v[count], v[count + 1 :]) for j in range(count)],
    )


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
