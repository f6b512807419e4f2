"""The gradient of uᵀJ v with one outer product a layer: the cotangent of u with the tangent of v.

Back-propagating through J v takes a sweep for the cotangents of every layer, and they are those of u, which
are known if v = Jᵀu. So Jᵀu is swept without a graph, J v with one that is cut after every step, and only the
gradient of each layer's own weights is left for backward(): three passes in all, where back-propagating
through ‖J v‖ takes four.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..tracing import inside_torch_func, tracing
from .tape import Slot


def with_outer_products(
    value: Tensor, cotangents: dict[Slot, Tensor], weighted: dict[Slot, Tensor], factor: float
) -> Tensor:
    """The value, with the gradient of factor · Σ uᵀJ v. Tape.vjp(u) and Tape.jvp(v) have filled the dicts."""
    slots = [slot for slot in weighted if slot in cotangents]
    return _Paired.apply(value, factor, *[cotangents[s] for s in slots], *[weighted[s] for s in slots])


def differentiable_once(value: Tensor) -> Tensor:
    """The value of a norm whose singular vectors were held fixed.

    By the envelope theorem its first derivative is right, and that of the derivative is not. (torch.func
    always asks for a graph, whether or not it differentiates again: there everything must pass.)
    """
    return value if tracing() or inside_torch_func() or not value.requires_grad else _Once.apply(value)


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled() and not tracing():
        raise InputError(
            "The penalty holds singular vectors fixed, so that its gradient is right and cannot be "
            "differentiated again: call backward() and autograd.grad() without create_graph=True. For second "
            "derivatives of a small network take torch.linalg.matrix_norm(J.dense(), 2)."
        )


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _refuse_second_derivatives()
        return gradient


class _Paired(torch.autograd.Function):
    """Its gradient is factor · δ_l at every layer's F(a_l)."""

    @staticmethod
    def forward(value: Tensor, factor: float, *pairs: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.factor, *pairs = inputs
        ctx.save_for_backward(*pairs[: len(pairs) // 2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        _refuse_second_derivatives()
        deltas, factor = ctx.saved_tensors, ctx.factor * gradient
        return None, None, *[None] * len(deltas), *[delta * factor for delta in deltas]
