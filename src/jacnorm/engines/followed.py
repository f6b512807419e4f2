"""Products that autograd follows call by call, for torch.compile and torch.func. There, a single node cannot
do the whole sweep.

Some kernels of a sweep have no derivative, such as the backward pass of SiLU. Each rule provides it instead:
the derivative of ⟨c, F(t)⟩ is Fᵀc in t, F(t) in c, and `terms` in the tensors that F reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .tape import Step


class CallByCall:
    """Takes the place of a `Pairing` in a sweep."""

    def push(self, step: Step, values: list[Tensor], ts: list[Any]) -> Any:
        read = [values[k] for k in step.reads]
        if not _has_derivative(step, ts):
            return step.push(*read, *ts)
        return _Pushed.apply(step.push, step.pull, step.terms, len(read), *read, *ts)

    def pull(self, step: Step, values: list[Tensor], c: Any) -> Sequence[Any]:
        read = [values[k] for k in step.reads]
        if not _has_derivative(step, [c]):
            return step.pull(*read, c)
        followed = [s is not None for s in step.sources]
        found = _Pulled.apply(step.push, step.pull, step.terms, followed, *read, c)
        return _spread(followed, found)


def _has_derivative(step: Step, vectors: Sequence[Any]) -> bool:
    """Whether the rule provides the derivative. Autograd can differentiate all other steps."""
    return step.terms is not None and all(v is None or isinstance(v, Tensor) for v in vectors)


def _spread(followed: Sequence[bool], values: Sequence[Any]) -> list[Any]:
    found = iter(values)
    return [next(found) if follows else None for follows in followed]


class _Pushed(torch.autograd.Function):
    """F(t), as a function of the values that F reads and the tangents."""

    generate_vmap_rule = True

    @staticmethod
    def forward(push: Any, pull: Any, terms: Any, count: int, *tensors: Tensor | None) -> Tensor:
        y: Tensor = push(*tensors)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, ctx.pull, ctx.terms, ctx.count, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> Any:
        read, ts = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        pulled = ctx.pull(*read, c)
        back = [None if t is None else g for t, g in zip(ts, pulled, strict=True)]
        return None, None, None, None, *ctx.terms(*read, c, *ts), *back


class _Pulled(torch.autograd.Function):
    """Fᵀc, as a function of the values that Fᵀ reads and the cotangent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(push: Any, pull: Any, terms: Any, followed: list[bool], *tensors: Tensor) -> Any:
        found = pull(*tensors)
        return tuple([g for g, follows in zip(found, followed, strict=True) if follows])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.push, _, ctx.terms, ctx.followed, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *ts: Tensor) -> Any:
        *read, c = ctx.saved_tensors
        spread = _spread(ctx.followed, ts)
        return None, None, None, None, *ctx.terms(*read, c, *spread), ctx.push(*read, *spread)
