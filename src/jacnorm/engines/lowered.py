"""Sweeps in half precision. Most steps run in it: products, activations, norms, moves. They read copies in
half precision. All other steps run in float32, and a step "to" converts vectors between the two.

Each step is a sum over many terms with independent rounding errors, or acts on each number alone. The error
is smaller than that of a power step. The loss and its gradient are not affected. The gradient of a penalty
goes to the float32 tensors, and is summed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from .tape import Parts, Slot, Step

PRODUCTS = frozenset(
    [
        *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("matmul", "__matmul__", "bmm", "mm", "addmm", "baddbmm", "einsum", "scaled_dot_product_attention"),
    ]
)
LOW = PRODUCTS | frozenset(
    [
        *("relu", "leaky_relu", "relu6", "hardtanh", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus"),
        *("elu", "selu", "celu", "hardswish", "dropout", "dropout1d", "dropout2d", "dropout3d"),
        *("batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm", "softmax"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        *("add", "__add__", "__radd__", "sub", "__sub__", "rsub", "__rsub__", "neg", "__neg__"),
        *("mul", "__mul__", "__rmul__", "div", "__truediv__", "mean", "sum", "clone", "contiguous"),
        *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "__getitem__"),
        *("transpose", "permute", "T", "mT", "movedim", "swapaxes", "cat", "stack", "pad", "roll"),
        *("chunk", "split", "unbind", "__iter__", "select", "narrow"),
    ]
)
LEAST = 64  # terms of a sum: with fewer, to change the precision takes longer than the product
Function = Callable[..., Any]


def lowered(
    steps: Sequence[Step],
    dtype: torch.dtype,
    slots: int,
    ends: set[Slot],
    weights: list[Tensor],
    kept: list[Tensor],
) -> list[Step]:
    """The steps of a run, for sweeps in `dtype`.

    `slots` is the number of slots of the run. The vectors of the slots in `ends` stay in float32. `weights`
    and `kept` are what the steps read, as in `Tape.values`; copies in half precision are appended.
    """
    found = _Lowered(dtype, slots, ends, weights, kept)
    for step in steps:
        found.add(step)
    return found.steps


class _Lowered:
    def __init__(
        self, dtype: torch.dtype, slots: int, ends: set[Slot], weights: list[Tensor], kept: list[Tensor]
    ):
        self._dtype, self._free, self._ends = dtype, count(slots), ends
        self._weights, self._kept = weights, kept
        self._copies: dict[int, int] = {}  # the position of the copy, by that of the tensor
        self._half: set[Slot] = set()  # slots whose vectors are in half precision
        self._converted: dict[Slot, Slot] = {}  # the slot with the same vector in the other precision
        self.steps: list[Step] = []

    def add(self, step: Step) -> None:
        is_low = self._suits(step)
        step = replace(step, sources=tuple([self._source(s, is_low) for s in step.sources]))
        if not is_low:
            self.steps.append(step)
            return
        target = step.target
        step = self._low(step)
        if target in self._ends:
            step.target = next(self._free)
        self._half.add(step.target)
        self.steps.append(step)
        if target in self._ends:
            self._convert(step.target, target, torch.float32)

    def _suits(self, step: Step) -> bool:
        return suits(step, [self._value(k) for k in step.reads])

    def _source(self, slot: Slot | None, is_low: bool) -> Slot | None:
        """The slot with this vector in the precision that the step takes."""
        if slot is None or (slot in self._half) == is_low:
            return slot
        if slot not in self._converted:
            self._converted[slot] = new = next(self._free)
            self._convert(slot, new, self._dtype if is_low else torch.float32)
            if is_low:
                self._half.add(new)
        return self._converted[slot]

    def _convert(self, source: Slot, target: Slot, dtype: torch.dtype) -> None:
        other = self._dtype if dtype == torch.float32 else torch.float32
        push, pull = (lambda t: t.to(dtype)), (lambda c: (c.to(other),))
        self.steps.append(Step("to", (source,), target, push, pull, False))

    def _low(self, step: Step) -> Step:
        push, pull, meet = (self._turned(f, step) for f in (step.push, step.pull, step.meet))
        terms = self._turned(step.terms, step) if step.within else step.terms
        step = replace(step, push=push, pull=pull, terms=terms, meet=meet, homes=step.reads)
        if not step.within:  # weights of a sharded module are there only while the step runs
            step.reads = tuple([self._copy(k) for k in step.reads])
        return step

    def _copy(self, position: int) -> int:
        if position not in self._copies:
            with torch.enable_grad():  # autograd may differentiate a sweep
                copy = self._value(position).to(self._dtype)
            values = self._weights if position >= 0 else self._kept
            self._copies[position] = len(values) if position >= 0 else -1 - len(values)
            values.append(copy)
        return self._copies[position]

    def _value(self, position: int) -> Tensor:
        return self._weights[position] if position >= 0 else self._kept[-1 - position]

    def _turned(self, function: Function | None, step: Step) -> Any:
        """The function with its results in half precision, even if it computes with a constant in float32."""
        if function is None:
            return None
        dtype, reads = self._dtype, len(step.reads) if step.within else 0

        def turned(*values: Any) -> Any:
            return _to(dtype, function(*_to(dtype, values[:reads]), *values[reads:]))

        return turned


def suits(step: Step, read: Sequence[Tensor]) -> bool:
    """Whether the step is better done in half precision."""
    if step.name not in LOW or any(t.dtype != torch.float32 for t in read):
        return False
    return step.name not in PRODUCTS or not any(t.dim() > 1 and t[0].numel() < LEAST for t in read)


def pays(steps: Sequence[Step], values: Sequence[Tensor]) -> bool:
    """Whether half precision saves time: whether any product would run in it. The steps read `values`."""
    return any(step.name in PRODUCTS and suits(step, [values[k] for k in step.reads]) for step in steps)


def _to(dtype: torch.dtype, found: Any) -> Any:
    if isinstance(found, Tensor):
        return found.to(dtype)
    if isinstance(found, Parts | list | tuple):
        return type(found)([_to(dtype, value) for value in found])
    return found
