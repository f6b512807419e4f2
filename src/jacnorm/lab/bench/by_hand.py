"""The sweeps of the spectral penalty, written out for two kinds of networks: how fast a general engine can be
with the same operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .by_hand_blocks import record
from .nets import Blocks

aten = torch.ops.aten


Sweeps = Callable[[Tensor, float], tuple[Tensor, list[Tensor], list[Tensor]]]


def by_hand(model: nn.Module, weight: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Only for linear layers with ReLU between them, and for `Blocks`. Nothing is checked."""
    stored = torch.randn(0, 0)

    def penalize(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal stored
        output, sweeps = _blocks(model, x) if isinstance(model, Blocks) else _dense(model, x)
        if len(stored) <= int(index.max()):
            stored = torch.randn(int(index.max()) + 1, output.shape[1])
        with torch.no_grad():
            u = stored[index]
            w, places, terms = sweeps(u / u.norm(dim=1, keepdim=True), weight / len(x))
            stored[index] = w / w.norm(dim=1, keepdim=True)
        return output, _Handed.apply(w.norm(dim=1).sum(), *places, *terms)

    return penalize


def _blocks(model: Blocks, x: Tensor) -> tuple[Tensor, Sweeps]:
    calls = record(model, x)
    return calls.values[-1], calls.sweeps


def _dense(model: nn.Module, x: Tensor) -> tuple[Tensor, Sweeps]:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    Ws: list[Tensor] = [layer.weight for layer in layers]
    output, hidden = _forward(x.flatten(1), Ws, [layer.bias for layer in layers])

    def sweeps(u: Tensor, factor: float) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        cs = _pull(u, Ws, hidden)
        w, terms = _push(cs[0] * (factor / cs[0].norm(dim=1, keepdim=True)), Ws, hidden, cs[1:])
        return w, Ws, terms

    return output, sweeps


def _forward(h: Tensor, Ws: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    hidden: list[Tensor] = []
    for W, b in zip(Ws[:-1], biases, strict=False):
        h = torch.relu(F.linear(h, W, b))
        hidden.append(h)
    return F.linear(h, Ws[-1], biases[-1]), hidden


def _pull(u: Tensor, Ws: Sequence[Tensor], hidden: Sequence[Tensor]) -> list[Tensor]:
    """Jᵀu, and the cotangent behind each layer."""
    cs = [u]
    for W, h in zip(reversed(Ws[1:]), reversed(hidden), strict=True):
        cs.insert(0, aten.threshold_backward(cs[0] @ W, h, 0))
    return [cs[0] @ Ws[0], *cs]


def _push(
    t: Tensor, Ws: Sequence[Tensor], hidden: Sequence[Tensor], cs: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """J v, and the gradient c ⊗ t of each layer."""
    terms: list[Tensor] = []
    for i, (W, c) in enumerate(zip(Ws, cs, strict=True)):
        terms.append(c.t() @ t)
        t = t @ W.t()
        if i < len(hidden):
            t = aten.threshold_backward(t, hidden[i], 0)
    return t, terms


class _Handed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors[len(tensors) // 2 :])
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, *ctx.saved_tensors, *[None] * len(ctx.saved_tensors)
