"""Functions with a backward pass of their own, as people write them."""

import torch
from torch.autograd.function import once_differentiable


class Cube(torch.autograd.Function):
    """With a kernel as its backward pass, which autograd does not follow."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, c):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * c


class Rounded(torch.autograd.Function):
    """Straight through: what comes before is hidden from who follows calls."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, c):
        return c


class Swish(torch.autograd.Function):
    """With the sigmoid kept, to save time."""

    @staticmethod
    def forward(ctx, x):
        s = x.sigmoid()
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, c):
        x, s = ctx.saved_tensors
        return c * s * (1 + x * (1 - s))
