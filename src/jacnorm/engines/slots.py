"""Slots: numbers for the activations that depend on x."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .rules import NotRecorded
from .tape import Slot

INSIDE = -1  # marks a list, tuple or dict that holds activations
_CONTAINERS = frozenset((list, tuple, dict))


def _version(t: Tensor) -> int | None:
    """How often t was changed in place, or None for tensors made in inference mode."""
    return None if t.is_inference() else t._version


class Slots:
    """Finds the slot of a tensor by its identity. (Every call of the model needs this: plain loops.)"""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Tensor], int | None, Slot]] = {}
        self.dtypes: list[torch.dtype] = []  # the dtype of each slot
        self.one_dtype = True
        self.bytes = 0  # the memory of all activations

    def new(self, y: Tensor) -> Slot:
        slot = self._count(y)
        self.bytes += y.nbytes
        self._found[id(y)] = (weakref.ref(y), _version(y), slot)
        return slot

    def add_name(self, y: Tensor, slot: Slot) -> None:
        """y is what is in this slot already."""
        self._found[id(y)] = (weakref.ref(y), _version(y), slot)

    def bundle(self) -> Slot:
        """A slot for several results together."""
        self.dtypes.append(self.dtypes[0])
        return len(self.dtypes) - 1

    def _count(self, y: Tensor) -> Slot:
        slot, dtype = len(self.dtypes), y.dtype
        self.dtypes.append(dtype)
        if dtype != self.dtypes[0]:
            self.one_dtype = False
        return slot

    def of(self, t: Any) -> Slot | None:
        entry: Any = self._found.get(id(t))
        if entry is None or entry[0]() is not t:
            return None
        known, version, slot = entry
        if version is not None and version != t._version:
            self._found[id(t)] = (known, t._version, slot)  # raise only once
            raise NotRecorded("a tensor was changed in place through a view of it")
        return slot

    def each(self, values: Sequence[Any]) -> list[Slot | None]:
        """The slot of each argument of a call; None for arguments that do not depend on x."""
        found, slots = self._found, list[Slot | None]()
        for value in values:
            entry: Any = found.get(id(value))
            if entry is not None and entry[0]() is value:
                is_known = entry[1] is None or entry[1] == value._version
                slots.append(entry[2] if is_known else self.of(value))
            elif type(value) in _CONTAINERS:
                slots.append(INSIDE if self.any_in(value) else None)
            else:
                slots.append(None)
        return slots

    def entry(self, t: Any) -> object | None:
        """The entry of the tensor. It is a new object after the tensor was changed in place."""
        return self._found.get(id(t))

    def any_in(self, values: Any) -> bool:
        """Whether anything in a list, tuple or dict depends on x."""
        found = self._found
        for value in values.values() if type(values) is dict else values:
            if type(value) in _CONTAINERS:
                if self.any_in(value):
                    return True
            elif id(value) in found and self.of(value) is not None:
                return True
        return False

    def unchanged(self, sources: Any, y: Tensor) -> bool:
        """Whether the call returned its argument unchanged (dropout in evaluation mode, contiguous, …)."""
        entry = self._found.get(id(y))
        return entry is not None and entry[0]() is y and sources == (entry[2],) and entry[1] == _version(y)

    def close(self) -> None:
        """Stop following tensors."""
        self._found = {}


class TracedSlots(Slots):
    """Slots under dynamo, which supports neither weak references nor versions, and frees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Tensor, Slot] = {}

    def new(self, y: Tensor) -> Slot:
        self._known[y] = slot = self._count(y)
        return slot

    def of(self, t: Any) -> Slot | None:
        return self._known.get(t) if isinstance(t, Tensor) else None

    def any_in(self, values: Any) -> bool:
        for value in values.values() if type(values) is dict else values:
            if self.of(value) is not None:
                return True
            if type(value) in (list, tuple, dict) and self.any_in(value):
                return True
        return False

    def each(self, values: Sequence[Any]) -> list[Slot | None]:
        return [
            self.of(value) if type(value) not in _CONTAINERS else INSIDE if self.any_in(value) else None
            for value in values
        ]

    def unchanged(self, sources: Any, y: Tensor) -> bool:
        return False  # an additional identity does no harm

    def close(self) -> None:
        self._known = {}
