"""Runs an unmodified model once and writes down, call by call, the linear map it is at this input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..precision import as_recorded
from .ancestry import Ancestry
from .batchnorm import Gate, Statistics, batch_norm, in_functional_order, under_saved_tensor_hooks
from .calls import CONSTANT, canonical_name, carries_no_derivative, is_counter, one_way, tensors
from .decompose import elementary
from .layers import WeightedLayer, is_layer, layer_called, weighted_layer
from .reads import Reads, factors
from .rules import RULES, NoRule, Rule
from .rules.table import LIST
from .slots import Slots
from .tape import Slot, Step, Tape
from .undo import Undo

HIDDEN = "something depends on the input by a way that was not recorded"
NO_WAY = "the output is not made of recorded calls (does torch.jit hide them, or sign() cut the way?)"


class Recorder(TorchFunctionMode):
    """Follows every tensor that depends on the one given to `begin`, until the one given to `end`.

    A call without a rule matters only if the output depends on it (and not, say, a loss that the model
    computes on the way): `tape` then raises `NoRule`. What spoils the whole record raises it at once where
    there is no gate, and `undo` takes back what the run has changed. With a gate, the run goes on,
    `reason` keeps why, and autograd's graph serves instead (see `engines/autograd.py`).
    """

    def __init__(
        self,
        *,
        flowing: bool,
        gate: Gate | None,
        reason: str | None = None,
        given: Sequence[Statistics | None] = (),
        slots: Slots | None = None,
    ):
        super().__init__()
        self.reason = reason
        self.statistics: list[Statistics | None] = []  # of each batch norm; None in evaluation mode
        self._second_run = bool(given)  # of the same batch, or a part of it
        self._given = iter(given)  # the statistics of the first run
        self.layers: list[WeightedLayer] = []
        self._steps: list[Step] = []
        self.flowing, self._gate = flowing, gate
        self.slots = slots or Slots()
        self._without_rule: dict[Slot | None, str] = {}
        self._source: Slot | None = None
        self._target: Slot | None = None
        self._ancestry: Ancestry | None = None
        self.reads = Reads()  # by F and Fᵀ, later
        self.without_grad = False  # a call that has a rule was made under no_grad
        self.undo = Undo(keeps=gate is None)

    def begin(self, x: Tensor) -> None:
        self._ancestry, self._source = Ancestry(x), self.slots.new(x)

    def end(self, y: Tensor) -> None:
        """What is called after y cannot change its derivative, and is not followed."""
        try:
            self._target = self.slots.of(y)
        except NoRule as no:
            self._give_up(str(no))
        self.slots.close()
        self._ancestry = None

    def tape(self) -> Tape:
        if self.reason is not None:
            raise NoRule(self.reason)
        if self._source is None or self._target is None:
            raise NoRule(NO_WAY)
        if self.reads.spoilt:
            raise NoRule("a tensor was changed in place after it was used")
        tape = Tape(self._steps, self._source, self._target)
        if self._without_rule:
            for slot in (self._target, *(s for step in tape.steps for s in step.sources)):
                if slot in self._without_rule:
                    raise NoRule(f"{self._without_rule[slot]} has no piecewise linear rule")
        return tape

    @property
    def eps(self) -> float:
        """Of the coarsest precision that occurred."""
        return max(torch.finfo(dtype).eps for dtype in set(self.slots.dtypes))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            if self.slots.any_in(args) or (kwargs and self.slots.any_in(kwargs)):
                return self._call(func, args, kwargs)
            return self._call_on_others(func, args, kwargs)
        except NoRule as no:
            self._give_up(str(no))
            if torch.is_grad_enabled() and (layer := layer_called(func, args, kwargs)):
                self.layers.append(layer)
            return self._follow(func(*args, **kwargs))

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call on something that depends on x. It is made as it was, by `run`; rules have one order."""
        run = partial(func, *args, **kwargs)
        args, kwargs = one_way(args, kwargs)
        name, in_place = canonical_name(func, args)
        if name == "batch_norm":
            return self._batch_norm(func, args, kwargs)
        rule = RULES.get(name)
        if rule is None or (self.reason is not None and not rule.weighted):
            return self._unruled(name, run, args, kwargs)
        self._check_call(name, args, kwargs)
        in_place = in_place or bool(kwargs.get("inplace"))
        written = args[0] if in_place else None  # it is a new activation after the call
        read = [t for t in factors(rule, args, kwargs) if t is not written and self.slots.of(t) is None]
        try:
            y = _APPLY[rule.kind](self, rule, name, run, args, kwargs, in_place)
        except TypeError as error:  # called with arguments that the rule does not know
            raise NoRule(f"{name}: {error}") from error
        for t in read:  # as it is after the call, which may have written into it
            self.reads.add(t)
        return y

    def _check_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What keeps a rule from being applied, whatever it is."""
        if not torch.is_grad_enabled():
            self.without_grad = True
            raise NoRule(
                f"{name} is called under no_grad or inference_mode, or inside a custom autograd function"
            )
        if kwargs.get("out") is not None:
            raise NoRule(f"{name} writes into out=")
        if under_saved_tensor_hooks():
            raise NoRule(f"{name} is called under saved-tensor hooks (checkpointing, offloading)")
        others = (t for t in tensors((args, kwargs)) if self.slots.of(t) is None)
        if self._gate is not None and self.reason is None and self._descends(*others):
            raise NoRule(HIDDEN)

    # One method a kind of rule. -------------------------------------------------------------------

    def _linear(self, rule: Rule, name: str, run: Any, args: Any, kwargs: Any, in_place: bool) -> Any:
        sources = self._sources(rule, name, args, kwargs)
        if rule.like and sources == (None,):  # only the shape comes from the input
            return run()
        learns = self._learns(args, kwargs)
        forward, backward, *result = rule.apply(*args, **kwargs)
        y = result[0] if result else run()
        if rule.weighted:
            self.layers.append(weighted_layer(name, forward, backward, *args, **kwargs))
        target = args[0] if in_place else y
        self._step(name, sources, target, forward, backward, rule.data == 1, learns)
        return y

    def _piecewise(self, rule: Rule, name: str, run: Any, args: Any, kwargs: Any, in_place: bool) -> Any:
        sources, learns = self._sources(rule, name, args, kwargs), self._learns(args, kwargs)
        if rule.inplace or not in_place:
            kwargs = {**kwargs, "inplace": True} if in_place else kwargs
            y, forward, backward, *borrowed = rule.apply(*args, **kwargs)
            for kept in borrowed:
                self.reads.add_borrowed(kept)
        else:  # what must be recorded is read off a copy before it is overwritten
            _, forward, backward = rule.apply(args[0].clone(), *args[1:], **kwargs)
            y = run()
        first = y if isinstance(y, Tensor) else y[0]
        self._step(name, sources, first, forward, backward, rule.data == 1, learns)
        return y

    def _multilinear(self, rule: Rule, name: str, run: Any, args: Any, kwargs: Any, in_place: bool) -> Any:
        followed = [i for i, a in enumerate(args) if self.slots.any_in((a,))]
        if len(followed) != 1 or self.slots.any_in(kwargs):
            raise NoRule(f"{name} multiplies things that both depend on the input")
        position = followed[0]
        if in_place and position > 0:  # a constant, which F needs as it is before it is overwritten
            args = (args[0].clone(), *args[1:])
        forward, backward = rule.apply(position, *args, **kwargs)
        source, y = self.slots.of(args[position]), run()
        self._step(name, (source,), y, forward, backward)
        return y

    def _splitting(self, rule: Rule, name: str, run: Any, args: Any, kwargs: Any, in_place: bool) -> Any:
        sources = self._sources(rule, name, args, kwargs)
        parts = run()
        for part, (forward, backward) in zip(parts, rule.apply(parts, *args, **kwargs), strict=True):
            self._step(name, sources, part, forward, backward, learns=False)
        return parts

    def _batch_norm(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.batch_norm:
            args, kwargs = in_functional_order(*args, **kwargs), {}
        slot = self.slots.of(args[0])
        self.undo.keep(*args[1:3])
        given = next(self._given, None)
        y, scale, statistics = batch_norm(*args, **kwargs, flowing=self.flowing, gate=self._gate, given=given)
        self.statistics.append(statistics)
        if slot is not None:
            self._step("batch_norm", (slot,), y, scale, scale)
            weight = args[3] if len(args) > 3 else kwargs.get("weight")
            if weight is not None:
                self.reads.add(weight)
        return y

    def _unruled(self, name: str, run: partial[Any], args: Any, kwargs: Any) -> Any:
        rewritten = elementary(name, run.func)
        if under_saved_tensor_hooks():  # what is recomputed must be the same
            rewritten = None
        y = run() if rewritten is None else rewritten(*args, **kwargs)
        if name in CONSTANT:
            if self._ancestry is not None and y is not args[0]:
                self._ancestry.cut(y)
            return y
        if carries_no_derivative(y):
            return y
        return self._follow(y, without_rule=name)

    def _call_on_others(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call on parameters and constants, or on what depends on x by a way that was not seen."""
        if self._second_run and args and is_counter(args[0]) and canonical_name(func, args)[1]:
            return args[0]  # batch norm counts the batches, and this one was counted
        if func is F.batch_norm or func is torch.batch_norm:
            return self._batch_norm(func, *one_way(args, kwargs))
        if self._gate is None:
            if args and canonical_name(func, args)[1]:
                self.undo.keep(args[0])
        elif (self.reason is None or is_layer(func, args)) and self._descends(args, kwargs):
            raise NoRule(HIDDEN)
        return func(*args, **kwargs)

    def _descends(self, *values: Any) -> bool:
        ancestry = self._ancestry
        return ancestry is not None and any(ancestry.has(t) for t in tensors(values))

    # Book-keeping. --------------------------------------------------------------------------------

    def _give_up(self, reason: str) -> None:
        if self._gate is None:
            raise NoRule(reason)
        self.reason = self.reason or reason

    def _sources(self, rule: Rule, name: str, args: Any, kwargs: Any) -> tuple[Slot | None, ...]:
        if len(args) == rule.data == 1 and not kwargs:  # most activations
            return (self.slots.of(args[0]),)
        data = args[0] if rule.data == LIST else args[: rule.data]
        rest = args[1:] if rule.data == LIST else args[rule.data :]
        if not rule.like and (self.slots.any_in(rest) or (kwargs and self.slots.any_in(kwargs))):
            raise NoRule(f"a parameter of {name} depends on the input")
        missing = (None,) * max(0, rule.data - len(data))
        return *[self.slots.of(a) for a in data], *missing

    def _learns(self, args: Any, kwargs: Any) -> bool:
        """Whether a parameter has a part in F: after the data, something takes a gradient and is not data.

        To be asked before a call in place. (A plain loop, since every call comes by here.)
        """
        for a in (*args[1:], *kwargs.values()) if kwargs else args[1:]:
            if isinstance(a, Tensor) and a.requires_grad and self.slots.of(a) is None:
                return True
        return False

    def _step(
        self,
        name: str,
        sources: Any,
        y: Any,
        forward: Any,
        backward: Any,
        single: bool = True,
        learns: bool = True,
    ) -> None:
        if not isinstance(y, Tensor) or not y.is_floating_point() or self.slots.unchanged(sources, y):
            return
        as_tuple = (lambda u: (backward(u),)) if single else backward
        slot = self.slots.new(y)
        if not self.slots.one_dtype or torch.is_autocast_enabled(y.device.type):
            dtypes = [y.dtype if s is None else self.slots.dtypes[s] for s in sources]
            forward, as_tuple = as_recorded(forward, as_tuple, dtypes, y)
        self._steps.append(Step(name, sources, slot, forward, as_tuple, learns))

    def _follow(self, result: Any, without_rule: str = "a call") -> Any:
        """Keep track of what depends on x after a call without a rule."""
        for y in tensors(result):
            if y.is_floating_point() or y.is_complex():
                self._without_rule[self.slots.new(y)] = without_rule
        return result


_APPLY = {
    "linear": Recorder._linear,
    "piecewise": Recorder._piecewise,
    "multilinear": Recorder._multilinear,
    "splitting": Recorder._splitting,
}
