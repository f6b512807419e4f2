"""The sweeps of the spectral penalty, written out for one kind of network. A general engine can at best be
as fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

aten = torch.ops.aten


def by_hand(model: nn.Module, weight: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Only for linear layers with ReLU between them. Nothing is recorded or checked."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    Ws: list[Tensor] = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers]
    stored = torch.randn(0, layers[-1].out_features)

    def penalize(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal stored
        if len(stored) <= int(index.max()):
            stored = torch.randn(int(index.max()) + 1, layers[-1].out_features)
        output, hidden = _forward(x.flatten(1), Ws, biases)
        with torch.no_grad():
            u = stored[index]
            cs = _pull(u / u.norm(dim=1, keepdim=True), Ws, hidden)
            v = cs[0] * (weight / len(x) / cs[0].norm(dim=1, keepdim=True))
            w, terms = _push(v, Ws, hidden, cs[1:])
            stored[index] = w / w.norm(dim=1, keepdim=True)
        return output, _Handed.apply(w.norm(dim=1).sum(), *Ws, *terms)

    return penalize


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
