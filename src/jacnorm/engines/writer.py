"""Writes the tape, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..pytorch.precision import any_autocast_enabled, as_recorded
from ..pytorch.tracing import inside_torch_func, tracing
from .by_autograd import handle
from .lowered import lowered, pays
from .reads import Reads
from .rules import RULES, Call, NoRule
from .slots import Slots
from .tape import Kept, Parts, Slot, Step, Tape, version


class Writer:
    """Collects the steps of a run, and the tensors that they will read again."""

    def __init__(self, slots: Slots, reads: Reads, precision: torch.dtype | None = None):
        self.slots, self._reads = slots, reads
        self._precision = precision
        self.ends: set[Slot] = set()  # slots at which a product of J may begin or end
        self.steps: list[Step] = []
        self._weights: dict[int, tuple[int, Tensor]] = {}  # the position of each weight, by its id
        self._positions: dict[int, int] = {}  # the position of each activation, by its id
        self._kept = Kept()
        self._read_in_run: list[tuple[Tensor, int]] = []  # activations, with their versions

    def tape(self, source: Slot, target: Slot) -> Tape:
        weights = [t for _, t in self._weights.values()]
        plain = Tape(self.steps, source, target, weights, self._kept)
        # A model of several precisions has products in half precision anyway.
        if self._precision is None or not self.slots.one_dtype or not pays(plain.steps, plain.values()):
            return plain
        ends = {source, target, *self.ends}
        steps = lowered(
            plain.steps, self._precision, len(self.slots.dtypes), ends, weights, self._kept.tensors
        )
        return Tape(steps, source, target, weights, self._kept)

    @property
    def is_spoilt(self) -> bool:
        """Whether an activation was changed in place after a step had read it."""
        return any(version(t) != before for t, before in self._read_in_run)

    def close(self) -> None:
        """End the run. (After it, nothing here may keep activations alive.)"""
        self._read_in_run = []

    def add(self, name: str, sources: Any, y: Any, call: Call) -> None:
        """Add a step for this call, unless it returned its argument unchanged, or no real numbers."""
        first, parts = y, False
        if not isinstance(y, Tensor):
            first, parts = y[0], RULES[name].parts  # else the others are indices
        if not isinstance(first, Tensor) or not (first.is_floating_point() or first.is_complex()):
            return
        if first.is_complex() and not RULES[name].of_complex:
            raise NoRule("complex numbers")
        if not parts and self.slots.unchanged(sources, first):
            return
        slot = self.slots.bundle() if parts else self.slots.new(first)
        for part in y if parts else ():  # now, as the step may read them
            self.slots.new(part)
        reads, learns = tuple([self._position(t) for t in call.reads]), False
        for t in call.reads:
            learns = learns or t.requires_grad
        push, pull, terms, meet = call.push, call.pull, call.terms, call.meet
        if name == "batch_norm" or RULES[name].data == 1:
            pull = _listing(pull)
        if not parts and (not self.slots.one_dtype or any_autocast_enabled()):
            dtypes = [first.dtype if s is None else self.slots.dtypes[s] for s in sources]
            push, pull, terms = as_recorded(push, pull, terms, dtypes, first)
            meet = None
        self.steps.append(Step(name, sources, slot, push, pull, learns, reads, terms, meet))
        if parts:
            self.take_apart(name, slot, y)

    def within(self, begin: int, end: int, module: Any) -> None:
        """Note that the steps from `begin` to `end` read weights of a sharded module."""
        for step in self.steps[begin:end]:
            step.within = (*step.within, module)

    def add_by_autograd(
        self,
        name: str,
        sources: Any,
        edges: tuple[Tensor | None, ...],
        ys: Sequence[Tensor],
        graph: Any,
    ) -> None:
        target = self.slots.new(ys[0]) if len(ys) == 1 else self.slots.bundle()
        for y in ys if len(ys) > 1 else ():
            self.slots.new(y)
        learns = any(e is not None for e in edges)
        push, pull = graph.push, graph.pull
        self.steps.append(Step(name, sources, target, push, pull, learns, by_autograd=graph, edges=edges))
        if len(ys) > 1:
            self.take_apart(name, target, ys)

    def take_apart(self, name: str, bundle: Slot, ys: Sequence[Tensor]) -> None:
        """Add one step per result of a call with several results."""
        count = len(ys)
        for i, y in enumerate(ys):
            push, pull = _taking(i, count)
            slot = self.slots.of(y)
            if slot is not None and (y.is_floating_point() or y.is_complex()):
                self.steps.append(Step(name, (bundle,), slot, push, pull, False))

    def _position(self, t: Tensor) -> int:
        """The position of t in `Tape.values`."""
        if self.slots.of(t) is None:
            if id(t) not in self._weights:
                self._weights[id(t)] = (len(self._weights), t)
                self._reads.add(t)
            return self._weights[id(t)][0]
        if id(t) not in self._positions:
            self._positions[id(t)] = len(self._kept.tensors)
            self._kept.tensors.append(t)
            self._read_in_run.append((t, version(t)))
        return -1 - self._positions[id(t)]


def edge(t: Tensor) -> Tensor | None:
    """The place in the graph to which a gradient of t belongs now. (After a later in-place call, t has
    another place.) It holds no numbers."""
    if not t.requires_grad:
        return None
    if t.is_leaf or tracing() or inside_torch_func():
        return t
    return handle(t)


def _listing(pull: Any) -> Any:
    return lambda *values: (pull(*values),)


def _taking(i: int, count: int) -> Any:
    def push(parts: Any) -> Any:
        return parts[i]

    def pull(c: Tensor) -> Any:
        return (Parts(c if k == i else None for k in range(count)),)

    return push, pull
