"""Runs an unmodified model once and writes down, call by call, the linear map it is at this input."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .batchnorm import Gate, batch_norm
from .decompose import ELEMENTARY
from .rules import RULES, NoRule, Rule
from .rules.table import LIST
from .tape import Slot, Step, Tape

# Calls whose result carries no derivative, although it is made of floats.
CONSTANT = frozenset(
    [
        "detach",
        "sign",
        "floor",
        "ceil",
        "round",
        "trunc",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "rand_like",
        "randn_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_tensor",
        "heaviside",
        "sgn",
    ]
) | {"get data"}
HARMLESS = (int, float, bool, str, torch.Size, torch.dtype, torch.device, torch.layout, type(None))


@dataclass(frozen=True, slots=True)
class WeightedLayer:
    """One use of a weight: W of eq. (4) as an operator on the input it really had."""

    name: str
    weight: Tensor
    input_shape: torch.Size  # of one sample
    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor], Tensor]


class Recorder(TorchFunctionMode):
    """Follows every tensor that depends on x.

    Without a gate, the first call that has no rule ends the run with `NoRule`. With a gate, the run goes
    on, `reason` keeps why, and what autograd recorded serves instead (see `engines/autograd.py`).
    """

    def __init__(self, x: Tensor, *, flowing: bool, gate: Gate | None):
        super().__init__()
        self.reason: str | None = None
        self.layers: list[WeightedLayer] = []
        self._steps: list[Step] = []
        self._flowing, self._gate = flowing, gate
        self._slots: dict[int, tuple[weakref.ref[Tensor], int, Slot]] = {}
        self._count = 0
        self._source = self._register(x)

    def tape(self, output: Tensor) -> Tape:
        target = self._slot(output)
        if target is None:
            raise NoRule("the output is not made of recorded calls on the input")
        return Tape(self._steps, self._source, target)

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        try:
            if not any(self._slot(t) is not None for t in _tensors((args, kwargs))):
                return func(*args, **kwargs)
            args, kwargs = _input_first(args, kwargs)
            return self._call(func, args, kwargs)
        except NoRule as no:
            if self._gate is None:
                raise
            self.reason = self.reason or str(no)
            return self._follow(func(*args, **kwargs))

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, in_place = canonical_name(func, args)
        if name == "batch_norm":
            return self._batch_norm(func, args, kwargs)
        rule = RULES.get(name)
        if rule is None:
            return self._unruled(name, func, args, kwargs)
        if not torch.is_grad_enabled():
            raise NoRule(f"{name} is called under no_grad or inside a custom autograd function")
        if kwargs.get("out") is not None:
            raise NoRule(f"{name} writes into out=")
        in_place = in_place or bool(kwargs.get("inplace"))
        try:
            return _APPLY[rule.kind](self, rule, name, func, args, kwargs, in_place)
        except TypeError as error:  # called with arguments that the rule does not know
            raise NoRule(f"{name}: {error}") from error

    # One method a kind of rule. -------------------------------------------------------------------

    def _linear(self, rule: Rule, name: str, func: Any, args: Any, kwargs: Any, _: bool) -> Any:
        sources = self._sources(rule, name, args, kwargs)
        if rule.like and sources == (None,):  # only the shape comes from the input
            return func(*args, **kwargs)
        forward, backward = rule.apply(*args, **kwargs)
        y = func(*args, **kwargs)
        if rule.weighted:
            x, weight = args[0], args[1] if len(args) > 1 else kwargs["weight"]
            self.layers.append(WeightedLayer(name, weight, x.shape[1:], forward, backward))
        changed = args[0] if name == "__setitem__" else y
        self._step(name, sources, changed, forward, backward)
        return y

    def _piecewise(self, rule: Rule, name: str, func: Any, args: Any, kwargs: Any, in_place: bool) -> Any:
        sources = self._sources(rule, name, args, kwargs)
        if not in_place:
            y, forward, backward = rule.apply(*args, **kwargs)
        elif rule.inplace:
            y, forward, backward = rule.apply(*args, **{**kwargs, "inplace": True})
        else:  # what must be recorded is read off a copy before it is overwritten
            _, forward, backward = rule.apply(args[0].clone(), *args[1:], **kwargs)
            y = func(*args, **kwargs)
        self._step(name, sources, y if isinstance(y, Tensor) else y[0], forward, backward)
        return y

    def _multilinear(self, rule: Rule, name: str, func: Any, args: Any, kwargs: Any, _: bool) -> Any:
        args = (*args, *(kwargs.pop(k) for k in ("other", "mat2", "vec") if k in kwargs))
        positions = [i for i, a in enumerate(args) if isinstance(a, Tensor) and self._slot(a) is not None]
        if len(positions) != 1:
            raise NoRule(f"{name} multiplies two things that both depend on the input")
        forward, backward = rule.apply(positions[0], *args, **kwargs)
        sources = (self._slot(args[positions[0]]),)
        y = func(*args, **kwargs)
        self._step(name, sources, y, forward, backward)
        return y

    def _splitting(self, rule: Rule, name: str, func: Any, args: Any, kwargs: Any, _: bool) -> Any:
        sources = self._sources(rule, name, args, kwargs)
        parts = func(*args, **kwargs)
        for part, (forward, backward) in zip(parts, rule.apply(parts, *args, **kwargs), strict=True):
            self._step(name, sources, part, forward, backward)
        return parts

    def _batch_norm(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.batch_norm:
            raise NoRule("torch.batch_norm is called directly; use torch.nn.functional.batch_norm")
        slot = self._slot(args[0])
        if slot is None:
            raise NoRule("batch norm with parameters that depend on the input")
        y, forward, backward = batch_norm(*args, **kwargs, flowing=self._flowing, gate=self._gate)
        self._step("batch_norm", (slot,), y, forward, backward)
        return y

    def _unruled(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        y = ELEMENTARY.get(name, func)(*args, **kwargs)
        if name in CONSTANT or _carries_no_derivative(y):
            return y
        if self._gate is None:
            raise NoRule(f"{name} has no piecewise linear rule")
        self.reason = self.reason or f"{name} has no piecewise linear rule"
        return self._follow(y)

    # Book-keeping. --------------------------------------------------------------------------------

    def _sources(self, rule: Rule, name: str, args: Any, kwargs: Any) -> tuple[Slot | None, ...]:
        data = list(args[0]) if rule.data == LIST else list(args[: rule.data])
        rest = (args[1:] if rule.data == LIST else args[rule.data :], kwargs)
        if not rule.like and any(self._slot(t) is not None for t in _tensors(rest)):
            raise NoRule(f"a parameter of {name} depends on the input")
        missing = max(0, rule.data - len(data))
        slots = (self._slot(a) if isinstance(a, Tensor) else None for a in data)
        return *slots, *[None] * missing

    def _step(self, name: str, sources: Any, y: Any, forward: Any, backward: Any) -> None:
        if not isinstance(y, Tensor) or _same(sources, self._slots.get(id(y)), y):
            return
        if len(sources) == 1:
            one = backward
            backward = lambda u: (one(u),)
        self._steps.append(Step(name, sources, self._register(y), forward, backward))

    def _register(self, y: Tensor) -> Slot:
        self._count += 1
        self._slots[id(y)] = (weakref.ref(y), y._version, self._count)
        return self._count

    def _slot(self, t: Tensor) -> Slot | None:
        entry = self._slots.get(id(t))
        if entry is None or entry[0]() is not t:
            return None
        if entry[1] != t._version:
            self._slots[id(t)] = (entry[0], t._version, entry[2])
            raise NoRule("a tensor was changed in place through a view of it")
        return entry[2]

    def _follow(self, result: Any) -> Any:
        """Keep track of what depends on x after a call without a rule."""
        for y in _tensors(result):
            if y.is_floating_point():
                self._register(y)
        return result


_APPLY = {
    "linear": Recorder._linear,
    "piecewise": Recorder._piecewise,
    "multilinear": Recorder._multilinear,
    "splitting": Recorder._splitting,
}


def canonical_name(func: Any, args: tuple[Any, ...]) -> tuple[str, bool]:
    """The rule's name for this call, and whether the call writes into its first argument."""
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return f"get {func.__self__.__name__}", False
    if type(func).__module__ == "torch._ops":
        return f"torch.ops.{func}", False
    if name.startswith("__"):
        return name, name == "__setitem__"
    if name in ("max", "min") and len(args) > 1 and isinstance(args[1], Tensor):
        return f"{name}imum", False
    if name == "unfold" and func is Tensor.unfold:
        return "Tensor.unfold", False
    in_place = name.endswith("_")
    return name.strip("_"), in_place


def _input_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    for key in ("input", "tensors", "self"):
        if not args and key in kwargs:
            kwargs = dict(kwargs)
            return (kwargs.pop(key),), kwargs
    return args, kwargs


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _carries_no_derivative(y: Any) -> bool:
    if isinstance(y, Tensor):
        return not (y.is_floating_point() or y.is_complex())
    if isinstance(y, list | tuple) and not isinstance(y, torch.Size):
        return all(_carries_no_derivative(item) for item in y)
    return isinstance(y, HARMLESS)


def _same(sources: Any, entry: Any, y: Tensor) -> bool:
    """The call gave its argument back untouched (dropout in evaluation, contiguous, …)."""
    return entry is not None and entry[0]() is y and entry[1] == y._version and sources == (entry[2],)
