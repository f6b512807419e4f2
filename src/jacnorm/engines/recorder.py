"""Runs an unmodified model once and records, call by call, its linear map at this input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..pytorch.sharded import is_of_fsdp
from ..pytorch.tracing import inside_torch_func, tracing
from . import hooks
from .ancestry import Ancestry
from .batchnorm import Gate, Statistics, batch_norm, in_functional_order, under_saved_tensor_hooks
from .by_autograd import by_itself, hardsigmoid
from .calls import (
    ASKING,
    CONSTANT,
    OF_THE_GRAPH,
    canonical_name,
    carries_no_derivative,
    is_counter,
    one_way,
    opened,
    tensors,
)
from .checking import one_way_only
from .layers import Layer, is_layer, layer_called, layer_of
from .reads import Reads, factors, placed
from .rules import MISSING, RULES, Call, NoRule, NotRecorded, OneWay, Rule
from .rules.table import LIST, REST
from .slots import INSIDE, Slots
from .tape import Slot, Tape
from .undo import Undo
from .writer import Writer, edge

HIDDEN = "something depends on the input by a way that was not recorded"
NO_WAY = "the output is not made of recorded calls (does torch.jit hide them, or sign() cut the way?)"
# Calls that need autograd's graph of the model itself. Energy-based models make them.
DIFFERENTIATING = (torch.autograd.grad, torch.autograd.backward, Tensor.backward)
THROUGH = "written through a view"
Checker = Callable[..., Any]


class Recorder(TorchFunctionMode):
    """Follows every tensor that depends on the one given to `begin`, until the one given to `end`.

    A call without a rule is a step by autograd. What spoils the whole record raises `NotRecorded`, and
    `undo` takes back what the run has changed. (`waits`: when the run is over. Where processes gather weights
    together, all must come to the end of it.) With a gate nothing is recorded: the whole model is to be
    one step by autograd, and batch norm is told when its statistics must pass no gradient (see
    `engines/batchnorm.py`).
    """

    def __init__(
        self,
        *,
        flowing: bool,
        gate: Gate | None = None,
        given: Sequence[Statistics | None] = (),
        slots: Slots | None = None,
        check: Checker | None = None,
        precision: torch.dtype | None = None,
        waits: bool = False,
    ):
        super().__init__()
        self.statistics: list[Statistics | None] = []  # one per batch norm; None in evaluation mode
        self._second_run = bool(given)  # whether this is a later run of the same batch, or of a part of it
        self._given = iter(given)  # the statistics of the first run
        self.layers: list[Layer] = []
        self.flowing, self.precision, self._gate, self._check = flowing, precision, gate, check
        self.slots = slots or Slots()
        self.reads = Reads()  # tensors that F and Fᵀ read later
        self.writer = Writer(self.slots, self.reads, precision)
        self.without_rule: dict[str, str] = {}  # calls by autograd, and the reasons
        self.undo = Undo(keeps=gate is None)
        self.without_grad: str | None = None  # the first call under no_grad
        self.hooked = False  # whether the model has registered a hook on a tensor
        self._waits = waits
        self._reason: NotRecorded | None = None  # that waits for the end of the run
        self._source: Slot | None = None
        self._target: Slot | None = None
        self._ancestry: Ancestry | None = None

    def begin(self, x: Tensor) -> None:
        if self._gate is None:
            self._source = self.slots.new(x)
        self._ancestry = None if self._check is None else Ancestry(x)

    def end(self, y: Tensor) -> None:
        """Stop recording. Calls after y cannot change its derivative."""
        self._target = self.slots.of(y)
        self.slots.close()
        self._ancestry = None

    def follows(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether anything that is recorded depends on x."""
        return self._gate is None and self.slots.any_in([args, kwargs])

    def tape(self) -> Tape:
        if self._reason is not None:
            raise self._reason
        if self._source is None or self._target is None:
            raise NotRecorded(self._hidden(NO_WAY))
        if self.reads.spoilt or self.writer.is_spoilt:
            raise NotRecorded("a tensor was changed in place after it was used")
        self.writer.close()
        return self.writer.tape(self._source, self._target)

    @property
    def dtypes(self) -> Sequence[torch.dtype]:
        """Of all activations."""
        return self.slots.dtypes[:1] if self.slots.one_dtype else self.slots.dtypes

    @property
    def eps(self) -> float:
        """The machine epsilon of the coarsest precision that occurred."""
        return max((torch.finfo(dtype).eps for dtype in set(self.slots.dtypes)), default=torch.finfo().eps)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._gate is not None:
            return self._call_unrecorded(func, args, kwargs)
        if not self._waits:
            return self._followed(func, args, kwargs)
        if self._reason is None:
            try:
                return self._followed(func, args, kwargs)
            except NotRecorded as no:
                self._reason = no
        return func(*args, **kwargs)

    def _followed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        slots = self.slots.each(args)
        if slots.count(None) < len(slots) or (kwargs and self.slots.any_in(kwargs)):
            return self._call(func, args, kwargs, slots)
        return self._call_on_others(func, args, kwargs)

    def _call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], slots: list[Slot | None]
    ) -> Any:
        """A call with an argument that depends on x. `run` makes the original call; rules get their arguments
        in one fixed order."""
        run, in_place = partial(func, *args, **kwargs), False
        if kwargs:
            kwargs = dict(kwargs)
            in_place = bool(kwargs.pop("inplace", False))
            args, kwargs = one_way(args, kwargs)
            slots = self.slots.each(args)
        name, writes = canonical_name(func, args)
        in_place = in_place or writes
        rule = RULES.get(name)
        if rule is None:
            if name == "batch_norm":
                return self._batch_norm(func, args, kwargs)
            if name in CONSTANT:
                return self._constant(run, args)
            if name == hooks.NAME:
                return self._through_hook(run)
            if func in DIFFERENTIATING:
                raise NotRecorded(f"{name} is called inside the model, which differentiates")
            if name in ASKING:
                self.hooked |= name == "register_hook" and not is_of_fsdp(run.args[1])
                y = run()
                if carries_no_derivative(y) or name in OF_THE_GRAPH:
                    return y
        if not torch.is_grad_enabled():
            self.without_grad = self.without_grad or name
            return self._constant(run, args)
        if under_saved_tensor_hooks():
            raise NotRecorded(f"{name} is called under saved-tensor hooks (checkpointing, offloading)")
        if self._ancestry is not None:
            self._check_others(args, kwargs)
        try:
            if rule is None:
                raise NoRule("it has no rule")
            return self._by_rule(rule, name, run, args, kwargs, slots, in_place)
        except (NoRule, TypeError) as no:  # TypeError: the call has arguments that the rule does not know
            inner = opened(func)
            if inner is not None and rule is None:
                with self:  # the calls inside it are recorded instead
                    return inner(*run.args, **run.keywords)
            return self._by_autograd(name, run, in_place, str(no))

    def _constant(self, run: partial[Any], args: tuple[Any, ...]) -> Any:
        """A call whose result has no derivative."""
        y = run()
        for t in tensors(y):
            if self._ancestry is not None and t is not args[0]:
                self._ancestry.cut(t)
        return y

    def _through_hook(self, run: partial[Any]) -> Any:
        """An identity that a module with a full backward hook inserts, where its arguments have gradients.
        It is no step: the way through the model is the same without it."""
        ys = run()
        for x, y in zip(tensors(run.args), ys, strict=True):
            slot = self.slots.of(x)
            if slot is not None and y is not x:
                self.slots.add_name(y, slot)
        return ys

    def _check_others(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise `NotRecorded` if an argument without a slot still depends on x."""
        others = (t for t in tensors((args, kwargs)) if self.slots.of(t) is None)
        if self._descends(*others):
            raise NotRecorded(self._hidden(HIDDEN))

    def _by_rule(
        self, rule: Rule, name: str, run: Any, args: Any, kwargs: Any, slots: Any, in_place: bool
    ) -> Any:
        if kwargs and kwargs.get("out") is not None:
            raise NoRule("it writes into out=")
        if not (rule.of_complex or self.slots.one_dtype) and any(
            map(torch.is_complex, tensors((args, kwargs)))
        ):
            raise NoRule("complex numbers")
        if rule.composed:
            with self:
                return rule.apply(*args, **kwargs)
        if kwargs and rule.data != 1:
            args, kwargs = placed(rule, args, kwargs)
            slots = self.slots.each(args)
        sources = self._sources(rule, args, kwargs, slots)
        if rule.like and sources == (None,):  # only the shape comes from the input
            return run()
        read = self._factors(rule, args, kwargs, in_place)
        through = in_place and not tracing() and args[0]._is_view() and args[0]._base.is_contiguous()
        base = self.slots.of(args[0]._base) if through else None
        check = None if self._check is None else self._check(self.slots, name, run, in_place)
        apply = partial(rule.apply, [s is not None for s in sources]) if rule.product else rule.apply
        if rule.parts:
            y = run()
            call = apply(y, *args, **kwargs)
        elif not in_place:
            call = apply(*args, **kwargs)
            y = run() if call.y is MISSING else call.y
        elif rule.inplace:
            call = apply(*args, **{**kwargs, "inplace": True})
            y = call.y
        else:
            call, y = self._written_over(rule, apply, run, args, kwargs)
        for t in read:  # with its version after the call, which may have changed it in place
            self.reads.add(t)
        if call.borrows is not None:
            self.reads.add_borrowed(call.borrows)
        if rule.is_layer and sources[1] is None:
            self.layers.append(layer_of(name, call, args[0], args[1]))
        count = len(self.writer.steps)
        self.writer.add(name, sources, args[0] if name == "__setitem__" else y, call)
        if check is not None:
            self._compare(check, name, count, call, y, in_place)
        if through:
            self._write_through(args[0], base)
        return y

    def _compare(self, check: Any, name: str, count: int, call: Call, y: Any, in_place: bool) -> None:
        """Compare the step that was written, if there is one, with autograd."""
        new = self.writer.steps[count:]
        if new and (wrong := check(new[0], call, y)):
            if in_place:
                raise NotRecorded(f"{name}: {wrong}")
            del self.writer.steps[count:]
            raise NoRule(wrong)

    def _write_through(self, view: Tensor, base: Slot | None) -> None:
        """A view was changed in place, and with it its base, which was in this slot."""
        call = RULES[THROUGH].apply(view._base, view)
        self.writer.add(THROUGH, (base, self.slots.of(view)), view._base, call)

    def _factors(self, rule: Rule, args: Any, kwargs: Any, in_place: bool) -> list[Tensor]:
        """The tensors that F and Fᵀ may read again: weights, masks, indices."""
        if rule.is_layer or (len(args) == rule.data == 1 and not kwargs):  # `Call.reads` has them; or none
            return []
        written = args[0] if in_place else None  # after the call it is a new activation
        return [t for t in factors(rule, args, kwargs) if t is not written and self.slots.of(t) is None]

    def _written_over(self, rule: Rule, apply: Any, run: Any, args: Any, kwargs: Any) -> tuple[Call, Any]:
        """A call in place. The rule must read the values from before the call."""
        if not rule.runs:
            call = apply(*args, **kwargs)
            if all(t is not args[0] for t in call.reads):
                return call, run()
        before = args[0].clone()
        self.slots.new(before)
        call = apply(before, *args[1:], **kwargs)
        return call, run()

    def _by_autograd(self, name: str, run: partial[Any], in_place: bool, why: str) -> Any:
        if tracing() or inside_torch_func():
            raise NotRecorded(f"{name}: {why}")
        written = _first_argument(run) if in_place else None
        if written is not None and written.is_inference():
            raise NotRecorded("a tensor made in inference mode is written into")
        own = by_itself(
            run.func, run.args, run.keywords, lambda t: self.slots.of(t) is not None, copies=in_place
        )
        if own is None:
            return self._constant(run, (_first_argument(run),))
        if self._check is not None and one_way_only(own):
            raise OneWay(name)
        sources = tuple(self.slots.of(t) for t in own.used if self.slots.of(t) is not None)
        edges = tuple(edge(t) for t in own.used)
        for t in own.used:
            if self.slots.of(t) is None:
                self.reads.add(t)
        y, ys = own.bridged()
        if written is not None:
            if len(ys) != 1 or ys[0].shape != written.shape:
                raise NotRecorded(f"{name} writes into several tensors, or into one of another shape")
            written.copy_(ys[0])
            y, ys = written, [written]
        self.without_rule.setdefault(name, why)
        self.writer.add_by_autograd(f"{name} by autograd", sources, edges, ys, own.graph)
        return y

    def _batch_norm(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is torch.batch_norm:
            args, kwargs = in_functional_order(*args, **kwargs), {}
        slot = self.slots.of(args[0]) if self._gate is None else None
        self.undo.keep(*args[1:3])
        given = next(self._given, None)
        call, statistics = batch_norm(*args, **kwargs, flowing=self.flowing, gate=self._gate, given=given)
        self.statistics.append(statistics)
        if slot is not None:
            self.writer.add("batch_norm", (slot,), call.y, call)
        return call.y

    def _call_on_others(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call on parameters and constants, or on tensors that depend on x in an unrecorded way."""
        if self._second_run and args and is_counter(args[0]) and canonical_name(func, args)[1]:
            return args[0]  # batch norm counts batches, and has counted this one already
        if func is F.batch_norm or func is torch.batch_norm:
            return self._batch_norm(func, *one_way(args, kwargs))
        if args and canonical_name(func, args)[1]:
            self.undo.keep(args[0])
        if self._descends(args, kwargs):
            raise NotRecorded(self._hidden(HIDDEN))
        return func(*args, **kwargs)

    def _call_unrecorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call in a model that is one step by autograd."""
        if self._second_run and args and is_counter(args[0]) and canonical_name(func, args)[1]:
            return args[0]
        if func is F.batch_norm or func is torch.batch_norm:
            return self._batch_norm(func, *one_way(args, kwargs))
        name = getattr(func, "__name__", "")
        if name == "register_hook":
            self.hooked = True
            hook = args[1] if len(args) > 1 else kwargs["hook"]
            return func(args[0], hooks.muted(hook, self._gate))
        if name == "__get__" and func.__self__.__name__ == "grad_fn":
            return hooks.node_for_hooks(func(*args), self._gate)
        if not torch.is_grad_enabled():
            self.without_grad = self.without_grad or canonical_name(func, args)[0]
        if func is F.hardsigmoid and not under_saved_tensor_hooks():
            return hardsigmoid(*args, **kwargs)
        if torch.is_grad_enabled() and is_layer(func, args) and (layer := layer_called(func, args, kwargs)):
            self.layers.append(layer)
        return func(*args, **kwargs)

    def _hidden(self, what: str) -> str:
        if self.without_grad is None:
            return what
        return (
            f"{self.without_grad} is called under no_grad or inference_mode, or inside a custom "
            f"autograd function, "
            f"and {what}"
        )

    def _descends(self, *values: Any) -> bool:
        ancestry = self._ancestry
        return ancestry is not None and any(ancestry.has(t) for t in tensors(values))

    # Book-keeping. --------------------------------------------------------------------------------

    def _sources(self, rule: Rule, args: Any, kwargs: Any, slots: Any) -> tuple[Slot | None, ...]:
        """The slot of each of the rule's data, from the slots of all arguments."""
        if rule.data == LIST:
            sources, rest = self.slots.each(args[0]), slots[1:]
        elif rule.data == REST:
            sources, rest = slots[1:], slots[:1]
        else:
            sources, rest = slots[: rule.data], slots[rule.data :]
        if not rule.like and (rest.count(None) < len(rest) or (kwargs and self.slots.any_in(kwargs))):
            raise NoRule("a parameter of it depends on the input")
        if INSIDE in sources:
            raise NoRule("a list of tensors")
        return tuple(sources + [None] * (rule.data - len(sources)))


def _first_argument(run: partial[Any]) -> Any:
    return run.args[0] if run.args else next(iter(run.keywords.values()))
