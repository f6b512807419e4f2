"""2×2 max-pooling, the commonest kind, several times faster on the CPU than the general kernel.

That kernel takes a quarter of a LeNet's training step. Here the windows do not overlap, so that the maximum
of four pictures of half the size is the pool, and comparing them tells which place was chosen.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...pytorch.tracing import inside_torch_func

WORTHWHILE = 20_000  # numbers; below, the calls cost more than they save


def is_two_by_two(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> bool:
    def all_are(value: Any, n: int) -> bool:
        return value == n or value in ((n, n), [n, n])

    return (
        x.device.type == "cpu"
        and x.numel() >= WORTHWHILE
        and not inside_torch_func()  # torch.func does not support our autograd function
        and x.dim() == 4
        and x.is_contiguous()
        and x.shape[2] % 2 == 0
        and x.shape[3] % 2 == 0
        and all_are(kernel, 2)
        and (not stride or all_are(stride, 2))
        and all_are(padding, 0)
        and all_are(dilation, 1)
        and not ceil_mode
    )


class TwoByTwo(torch.autograd.Function):
    """(y, chosen) as `max_pool2d(x, 2, return_indices=True)`; of equal values the first is taken."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        count, channels, height, width = *x.shape[:2], x.shape[2] // 2, x.shape[3] // 2
        windows = x.view(count, channels, height, 2, width, 2)
        # Contiguous first: kernels are slow on every other number of a row.
        (a, b), (c, d) = windows.permute(3, 5, 0, 1, 2, 4).contiguous()
        top, bottom = torch.maximum(a, b), torch.maximum(c, d)
        y, is_bottom = torch.maximum(top, bottom), bottom > top
        is_right = _choose(is_bottom, d > c, b > a)
        rows, columns = (torch.arange(n, device=x.device) for n in (height, width))
        corner = 4 * width * rows[:, None] + 2 * columns
        chosen = is_right.long().add_(corner).add_(is_bottom.long(), alpha=2 * width)
        ctx.save_for_backward(chosen)
        ctx.shape = x.shape
        ctx.mark_non_differentiable(chosen)
        return y, chosen

    @staticmethod
    def backward(ctx: Any, u: Tensor, _: Tensor) -> Tensor:
        (chosen,) = ctx.saved_tensors
        zeros = u.new_zeros(*ctx.shape[:2], ctx.shape[2:].numel())
        return zeros.scatter_(-1, chosen.flatten(2), u.flatten(2)).view(ctx.shape)


def _choose(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """`torch.where` for booleans, but ten times faster."""
    return no ^ ((no ^ yes) & condition)
