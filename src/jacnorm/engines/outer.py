"""The gradient of uᵀJ v with one outer product a layer: the cotangent of u with the tangent of v.

Back-propagating through J v takes a sweep for the cotangents of every layer, and they are those of u, which
are known if v = Jᵀu. So both sweeps run without a graph, and only the gradient of each layer's own weights is
left for backward(): three passes in all, where back-propagating through ‖J v‖ takes four.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..tracing import tracing
from .tape import Slot, Tape


@torch.no_grad()
def cotangents(tape: Tape, u: Tensor) -> dict[Slot, Tensor]:
    """Of every activation; that of the source is Jᵀu."""
    found = {tape.target: u}
    for step in reversed(tape.steps):
        if step.target not in found:
            continue
        for s, part in zip(step.sources, step.backward(found[step.target]), strict=True):
            if s is not None and part is not None:
                found[s] = found[s] + part if s in found else part
    return found


def tangents(tape: Tape, v: Tensor) -> tuple[Tensor, dict[Slot, Tensor]]:
    """J v; and F(a) of each step that learns, with no way back to the steps before it."""
    found: dict[Slot | None, Any] = {tape.source: v, None: None}
    learned = {}
    for step in tape.steps:
        y = step.forward(*[found[s] for s in step.sources])
        if y.requires_grad:
            learned[step.target] = y
        found[step.target] = y.detach()
    return found[tape.target], learned


def with_outer_products(
    value: Tensor, deltas: dict[Slot, Tensor], learned: dict[Slot, Tensor], factor: float
) -> Tensor:
    """The value, with the gradient of factor · Σ uᵀJ v."""
    slots = [slot for slot in learned if slot in deltas]
    return _Paired.apply(value, factor, *[deltas[s] for s in slots], *[learned[s] for s in slots])


class _Paired(torch.autograd.Function):
    """Its gradient is factor · δ_l at every layer's F(a_l)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float, *pairs: Tensor) -> Tensor:
        ctx.save_for_backward(*pairs[: len(pairs) // 2])
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled() and not tracing():
            raise InputError(
                "SpectralPenalty with index= takes cotangents for constants, so that its gradient cannot be "
                "differentiated again: leave index= out where you call backward(create_graph=True)."
            )
        deltas, factor = ctx.saved_tensors, ctx.factor * gradient
        return None, None, *[None] * len(deltas), *[delta * factor for delta in deltas]
