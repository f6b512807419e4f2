"""Forms of the spectral penalty that this library could take and does not, to compare with.

All rest on dσ = uᵀ dJ v with u and v held fixed; they differ in which vector is stored and what carries the
gradient. Each is (x, index) -> (output, σ of each sample).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ... import Linearization, linearize
from ...engines.tape import Slot, Tape
from ...estimators.operator import column, normalized, norms


class Stored:
    """One vector a sample, random at first."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.table: dict[int, Tensor] = {}
        self._generator = torch.Generator().manual_seed(0)

    def read(self, index: Tensor, shape: torch.Size) -> Tensor:
        new = torch.randn(shape, generator=self._generator)
        rows = [self.table.get(i, row) for i, row in zip(index.tolist(), new, strict=True)]
        return normalized(torch.stack(rows))

    def write(self, index: Tensor, vectors: Tensor) -> None:
        self.table.update(zip(index.tolist(), normalized(vectors.detach()), strict=True))


class StoredBackward(Stored):
    """σ = ‖Jᵀu‖; the gradient that arrives at u is J v, the next u."""

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        J = linearize(self.model, x)
        u = self.read(index, J.output_shape)
        if torch.is_grad_enabled():
            u.requires_grad_().register_hook(lambda gradient: self.write(index, gradient))
        return J.output, norms(J.vjp(u))


class StoredForward(Stored):
    """σ = ‖J v‖; the gradient that arrives at v is Jᵀu, the next v. It stores n_in numbers a sample."""

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        J = linearize(self.model, x)
        v = self.read(index, J.input_shape)
        if torch.is_grad_enabled():
            v.requires_grad_().register_hook(lambda gradient: self.write(index, gradient))
        return J.output, norms(J.jvp(v))


class OuterProduct(Stored):
    """δ ⊗ a: cotangents of u and activations of v = Jᵀu are found without a graph, and each layer's
    gradient is one product of the two."""

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        J = linearize(self.model, x)
        if J.tape is None:
            raise ValueError("outer products need the layerwise engine")
        u = self.read(index, J.output_shape)
        deltas, pulled = _cotangents(J.tape, u)
        layers, tangent = _layers(J, J.tape, normalized(pulled))
        self.write(index, tangent)
        chosen = [(deltas[slot], y) for slot, y in layers if slot in deltas]
        return J.output, _Paired.apply(norms(tangent), [d for d, _ in chosen], *[y for _, y in chosen])


@torch.no_grad()
def _cotangents(tape: Tape, u: Tensor) -> tuple[dict[Slot, Tensor], Tensor]:
    """The cotangent of every activation, and Jᵀu."""
    found = {tape.target: u}
    for step in reversed(tape.steps):
        if step.target not in found:
            continue
        for s, part in zip(step.sources, step.backward(found[step.target]), strict=True):
            if s is not None and part is not None:
                found[s] = found[s] + part if s in found else part
    return found, found[tape.source]


def _layers(J: Linearization, tape: Tape, v: Tensor) -> tuple[list[tuple[Slot, Tensor]], Tensor]:
    """F(a) of each step with parameters, cut off from the steps before it; and J v."""
    tangents: dict[Any, Any] = {tape.source: v, None: None}
    layers = []
    for step in tape.steps:
        y = step.forward(*[tangents[s] for s in step.sources])
        if y.requires_grad:
            layers.append((step.target, y))
        tangents[step.target] = y.detach()
    return layers, tangents[tape.target]


class _Paired(torch.autograd.Function):
    """The value σ, whose gradient is δ_l at every layer's F(a_l)."""

    @staticmethod
    def forward(ctx: Any, sigma: Tensor, deltas: list[Tensor], *_: Tensor) -> Tensor:
        ctx.deltas = deltas
        return sigma.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return None, None, *[delta * column(gradient, delta) for delta in ctx.deltas]
