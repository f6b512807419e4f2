"""Sweeps in half precision. Only products with weights run in it, because they take most of the time. Their
results are float32 again, like norms, sums and everything between two layers.

A product is a sum over many terms with independent rounding errors. Its error is smaller than that of a power
step. The loss and its gradient are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..pytorch.tracing import tracing
from .tape import Step, Tape, version

PRODUCTS = frozenset(
    [
        *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("matmul", "__matmul__", "bmm", "mm", "addmm", "baddbmm", "einsum"),
    ]
)
LEAST = 64  # terms of a sum: with fewer, to change the precision takes longer than the product
Function = Callable[..., Any]


class Lowered:
    """Makes steps run in `dtype`. Weights are turned into it once per record."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype
        self._weights: dict[int, tuple[Tensor, int, Tensor]] = {}  # with their versions

    def step(self, step: Step, weights: Sequence[Tensor]) -> Step:
        """The step in half precision, if that saves time. `weights` are what the steps read, by position."""
        read = [weights[k] for k in step.reads if k >= 0]
        if step.name not in PRODUCTS or any(t.dim() > 1 and t[0].numel() < LEAST for t in read):
            return step
        pull = self._function(step.pull)
        terms = None if step.terms is None else self._function(step.terms)
        meet = None if step.meet is None else self._function(step.meet)
        return replace(step, push=self._function(step.push), pull=pull, terms=terms, meet=meet)

    def _function(self, function: Function) -> Function:
        def inside(*values: Any) -> Any:
            return _raised(function(*map(self._low, values)))

        return inside

    def _low(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if tracing() or torch.is_grad_enabled() or not (value.is_leaf and value.requires_grad):
            return value.to(self.dtype)
        known = self._weights.get(id(value))
        if known is None or known[0] is not value or known[1] != version(value):
            known = self._weights[id(value)] = value, version(value), value.to(self.dtype)
        return known[2]


def is_lowered(tape: Tape, dtype: torch.dtype) -> bool:
    """Whether any of its steps would run in half precision."""
    lowered, values = Lowered(dtype), tape.values()
    return any(lowered.step(step, values) is not step for step in tape.steps)


def _raised(found: Any) -> Any:
    if isinstance(found, Tensor):
        return found.to(torch.float32)
    if isinstance(found, list | tuple):
        return type(found)(map(_raised, found))
    return found
