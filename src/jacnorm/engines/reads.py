"""The tensors that products of a record read again. They must not be changed in place before that."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from torch import Tensor

from ..pytorch.tracing import tracing
from .calls import tensors
from .rules.table import LIST, Borrowed, Rule


class Reads:
    """Tensors, each with its version: how often it had been changed in place when it was used."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._versions: list[int] = []

    def add(self, t: Tensor) -> None:
        """Add a tensor. (Versions are unknown under dynamo, and for tensors made in inference mode.)"""
        if not (tracing() or t.is_inference()):
            self._tensors.append(t)
            self._versions.append(t._version)

    def add_borrowed(self, kept: Borrowed) -> None:
        if not (tracing() or kept.tensor.is_inference()):
            self._tensors.append(kept.tensor)
            self._versions.append(kept.version)

    @property
    def spoilt(self) -> bool:
        return [t._version for t in self._tensors] != self._versions


def factors(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments of a call that F and Fᵀ may read: weights, masks, indices, but not summands."""
    if tracing() or rule.data == LIST:
        return []
    if rule.is_layer:
        return [t for t in (*args[1:2], kwargs.get("weight")) if isinstance(t, Tensor)]
    if rule.product:
        return [a for a in args if isinstance(a, Tensor)]
    found = list(tensors((args, kwargs)))  # also inside x[:, index]
    added = {id(a) for a in args[: rule.data] if isinstance(a, Tensor) and a.is_floating_point()}
    return found if rule.data == 1 else [a for a in found if id(a) not in added]


def placed(
    rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with all data by position, even if they were given by name."""
    names, kwargs = _names(rule.apply)[1:] if rule.product else _names(rule.apply), dict(kwargs)
    for name in names[len(args) : max(rule.data, 0)]:
        if name not in kwargs:
            break
        args = (*args, kwargs.pop(name))
    return args, kwargs


@cache
def _names(apply: Any) -> list[str]:
    return list(inspect.signature(apply).parameters)
