"""Convolutions of one-channel images, the first layer of every net on grey images.

Kernels for the CPU fill vector registers with channels. With a single channel, the gradient in the weights
and the transposed convolution take two to three times as long as the layer itself, and a LeNet spends half of
its training step on them. This file transforms both to shapes on which the kernels are fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...pytorch.tracing import inside_torch_func
from .table import MISSING, Call

Product = Callable[[Tensor, Tensor], Tensor]
WORTHWHILE = 10_000  # numbers; below, the calls cost more than they save


def is_one_channel(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> bool:
    """Whether this is a plain convolution of grey images, large enough to care."""
    return (
        x.device.type == "cpu"
        and weight.dim() == 4
        and x.dim() == 4
        and x.shape[1] == 1  # not the weight, which has one channel in depthwise convolutions
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.float64)
        and stride in (1, (1, 1), [1, 1])
        and dilation in (1, (1, 1), [1, 1])
        and not isinstance(padding, str)
        and not torch.is_autocast_enabled("cpu")
    )


def is_worthwhile(v: Tensor) -> bool:
    """Whether v is large enough, outside of torch.func, which does not support our autograd functions."""
    return v.numel() >= WORTHWHILE and not inside_torch_func()


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: tuple[int, ...],
    plain: Product,
    plain_transpose: Product,
    plain_outer: Product,
) -> Call:
    """The layer and its products. Single vectors, as in power iteration on a layer, use the plain kernels."""
    shape = weight.shape

    def push(weight: Tensor, t: Tensor, _: None = None) -> Tensor:
        if not is_worthwhile(t):
            return plain(t, weight)
        return Convolution.apply(t, weight, None, padding) if torch.is_grad_enabled() else plain(t, weight)

    def pull(weight: Tensor, c: Tensor) -> list[Tensor | None]:
        if len(c) == 1 or inside_torch_func():
            return [plain_transpose(c, weight), None]
        if torch.is_grad_enabled():
            return [TransposedConvolution.apply(c, weight, padding), None]
        return [transposed(c, weight, padding), None]

    def terms(_: Tensor, c: Tensor, t: Tensor, __: None) -> list[Tensor]:
        return [weight_gradient(t, c, shape, padding) if is_worthwhile(t) else plain_outer(c, t)]

    y = Convolution.apply(x, weight, bias, padding) if is_worthwhile(x) else MISSING
    return Call(push, pull, (weight,), terms, y=y)


class Convolution(torch.autograd.Function):
    """`F.conv2d(x, weight, bias, padding=padding)`; its gradients can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return F.conv2d(x, weight, bias, padding=padding)

    @staticmethod
    def backward(ctx: Any, u: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias, _ = ctx.needs_input_grad
        return (
            TransposedConvolution.apply(u, weight, ctx.padding) if for_x else None,
            weight_gradient(x, u, weight.shape, ctx.padding) if for_weight else None,
            u.sum((0, 2, 3)) if for_bias else None,
            None,
        )


class TransposedConvolution(torch.autograd.Function):
    """`F.conv_transpose2d(u, weight, padding=padding)`."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, weight: Tensor, padding: Any) -> Tensor:
        ctx.save_for_backward(u, weight)
        ctx.padding = padding
        return transposed(u, weight, padding)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        u, weight = ctx.saved_tensors
        for_u, for_weight, _ = ctx.needs_input_grad
        return (
            Convolution.apply(v, weight, None, ctx.padding) if for_u else None,
            weight_gradient(v, u, weight.shape, ctx.padding) if for_weight else None,
            None,
        )


def weight_gradient(x: Tensor, u: Tensor, shape: torch.Size, padding: Any) -> Tensor:
    """Σ_b u_b ⊗ x_b, shifted: one small product of matrices for each row of the kernel.

    The shifts along a row are copied. The shifts from row to row are views of the same memory.
    """
    count, _, rows, columns = shape
    height, width = u.shape[2:]
    padded = F.pad(x, (padding[1], padding[1], padding[0], padding[0]))[:, 0]
    shifted = padded.unfold(2, columns, 1).permute(0, 3, 1, 2).reshape(len(x), columns, -1)
    cotangents = u.reshape(len(u), count, height * width)
    gradient = [
        torch.bmm(cotangents, shifted[:, :, i * width : i * width + height * width].mT).sum(0)
        for i in range(rows)
    ]
    return torch.stack(gradient, 1).view(shape)


def transposed(u: Tensor, weight: Tensor, padding: Any) -> Tensor:
    """A convolution with the turned kernel that makes 2×2 pixels at a time, as four channels."""
    _, _, rows, columns = weight.shape
    around = rows - 1 - padding[0], columns - 1 - padding[1]
    height, width = (n + 2 * p - k + 1 for n, p, k in zip(u.shape[2:], around, (rows, columns), strict=True))
    if height % 2 or width % 2 or min(around) < 0:
        return F.conv_transpose2d(u, weight, padding=padding)
    turned = weight.flip(2, 3)[:, 0]
    four = turned.new_zeros(2, 2, len(weight), rows + 1, columns + 1)
    for i in (0, 1):
        for j in (0, 1):
            four[i, j, :, i : i + rows, j : j + columns] = turned
    pixels = F.conv2d(u, four.view(4, len(weight), rows + 1, columns + 1), stride=2, padding=around)
    return F.pixel_shuffle(pixels, 2)
