"""Activation checkpointing: a call whose activations are not kept, but computed again when they are needed.

Such a call is one step of the tape. For each product, its function runs once more under a separate recorder.
The product is computed through that record, and the record is dropped. So at most one call's activations
exist at a time, both in the sweeps and in the loss's backward pass. Random numbers, autocast and the
statistics of batch norm are those of the first run.

When c and t meet, some of the terms belong to activations that are dropped with the record. Autograd carries
them back immediately to the tensors that the call reads: its arguments and weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import _get_current_function_mode, _pop_mode_temporarily
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from ..errors import UnsupportedModelError
from ..pytorch.modules import random_state, set_random_state
from ..pytorch.switches import Switch
from ..pytorch.tracing import inside_torch_func, tracing
from .ancestry import Ancestry, leaves_of
from .batchnorm import in_functional_order
from .by_autograd import gradient, is_real
from .pairing import Pairing
from .recorder import Recorder
from .rules import NotRecorded
from .tape import Parts, Step, Tape, Way, held_by
from .writer import edge

NAME = "checkpoint"
CHANGED = (
    "What activation checkpointing recomputes is not what the model computed: a checkpointed function "
    "depends on something that changes from run to run. Leave it out of the checkpointed part."
)
BATCH_NORM = inspect.signature(F.batch_norm)
BATCH_NORM_OF_PART = (
    "A part of the batch is linearized, and batch norm in training mode is inside a checkpointed call, where "
    "the statistics of the whole batch are not kept. Leave fraction= out, keep batch norm out of the "
    "checkpointed part, or put it into evaluation mode."
)
OPTIONS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
_plain: Any = getattr(checkpoint, "__wrapped__", None)


# The call as a recorder sees it. ---------------------------------------------------------------------------


def _seen(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`checkpoint`, made visible to a recorder."""
    recorder: Any = _get_current_function_mode()
    if isinstance(recorder, Recorder) and torch.is_grad_enabled() and not inside_torch_func():
        given = {name: value for name, value in kwargs.items() if name not in OPTIONS}
        call = partial(function, *args, **given)  # which opens a partial that it is given
        if recorder.follows(call.args, call.keywords):
            with _pop_mode_temporarily():
                return _record(recorder, call)
    return _plain(function, *args, **kwargs)


class _Showing:
    """PyTorch looks at this attribute of `checkpoint` for a function to call instead."""

    name = "__dynamo_disable"

    def __enter__(self) -> None:
        self._before = getattr(_plain, self.name, None)
        setattr(_plain, self.name, _seen)

    def __exit__(self, *_: object) -> None:
        setattr(_plain, self.name, self._before)


_switch = Switch(_Showing)


def seeing_checkpoints() -> AbstractContextManager[Any]:
    return nullcontext() if tracing() or _plain is None else _switch


def check_outside(name: str) -> None:
    if isinstance(_get_current_function_mode(), Inside):
        raise NotRecorded(f"the submodule {name!r} is inside a checkpointed call")


def count_outside(steps: Sequence[Step]) -> int:
    """The number of steps when a sharded module begins or ends. Raises inside a checkpointed call."""
    if isinstance(_get_current_function_mode(), Inside):
        raise UnsupportedModelError(
            "A module that fully_shard has sharded is inside a checkpointed call, where its weights would be "
            "gathered in the middle of a product. Let the checkpoint be inside: torch.distributed.algorithms."
            "_checkpoint.checkpoint_wrapper, or a call of checkpoint in forward(), and fully_shard around it."
        )
    return len(steps)


def _record(recorder: Recorder, call: partial[Any]) -> Any:
    """Make the call, and write its step."""
    replay = Replay(recorder, call)
    run, used = replay.first(recorder), replay.used(replay.tensors)
    if not run.ys:
        return run.result()
    read = [*used, *replay.weights]
    slots = [recorder.slots.of(t) for t in read]
    for t, slot in zip(read, slots, strict=True):
        if slot is None:
            recorder.reads.add(t)
    edges = tuple(edge(t) for t in read)
    ys = _Recomputing.apply(replay, [y.detach() for y in run.ys], *read)
    step, result = Checkpointed(replay, ys[0].grad_fn), run.result(ys)
    recorder.writer.add_by_autograd(NAME, tuple(s for s in slots if s is not None), edges, ys, step)
    if recorder._check is not None:
        del run  # with all that it has computed
        step.check(ys)
    return result


# Its runs. -------------------------------------------------------------------------------------------------


class Inside(Recorder):
    """Records one run of a checkpointed function. The first run is a part of the model's, or of another
    checkpointed function's: `around`."""

    def __init__(self, flowing: bool, precision: torch.dtype | None, around: Recorder | None = None):
        super().__init__(
            flowing=flowing, precision=precision, check=None if around is None else around._check
        )
        self._around = around
        self._is_replay: bool = around is None or getattr(around, "_is_replay", False)
        self._second_run = around is None or around._second_run
        if around is not None:
            self.undo, self.layers, self.without_rule = around.undo, around.layers, around.without_rule
            self.statistics = around.statistics

    def begin_with(self, xs: Sequence[Tensor]) -> None:
        slots = [self.slots.new(x) for x in xs]
        self._source = slots[0]
        if len(xs) > 1:
            self._source = self.slots.bundle()
            self.writer.take_apart(NAME, self._source, xs)
        if self._around is not None and self._around._ancestry is not None:
            self._ancestry = Ancestry(*xs, around=self._around._ancestry)

    def end_with(self, ys: Sequence[Tensor]) -> None:
        if len(ys) == 1:
            self.end(ys[0])
            return
        targets, like = tuple(self.slots.of(y) for y in ys), [(y.shape, y.dtype, y.device) for y in ys]
        self._target = self.slots.bundle()
        self.writer.steps.append(Step(NAME, targets, self._target, partial(_together, like), tuple, False))
        self.slots.close()
        self._ancestry = None

    def _batch_norm(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Running statistics are updated only in the first run."""
        if func is torch.batch_norm:
            args, kwargs = in_functional_order(*args, **kwargs), {}
        bound = BATCH_NORM.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.arguments["training"]:
            if self._is_replay:
                bound.arguments["running_mean"] = bound.arguments["running_var"] = None
            elif self._second_run:
                raise UnsupportedModelError(BATCH_NORM_OF_PART)
        y = super()._batch_norm(F.batch_norm, bound.args, {})
        self.statistics[-1] = None  # they would keep an activation
        return y


def _together(like: Sequence[Any], *ts: Tensor | None) -> Parts:
    """The tangents of several results. A result that does not depend on the arguments has no tangent."""
    zeros = (partial(torch.zeros, shape, dtype=dtype, device=device) for shape, dtype, device in like)
    return Parts(zero() if t is None else t for zero, t in zip(zeros, ts, strict=True))


class Run:
    """One run for a product: the leaves with which it began, its record, and its results."""

    def __init__(self, recorder: Inside, leaves: list[Tensor], result: Any):
        self._outputs, self._form = tree_flatten(result)
        self.ys = [y for y in self._outputs if isinstance(y, Tensor) and y.requires_grad]
        self.leaves, self._recorder = leaves, recorder
        if self.ys:
            recorder.end_with(self.ys)

    @cached_property
    def tape(self) -> Tape:
        return self._recorder.tape()

    def result(self, ys: Sequence[Tensor] = ()) -> Any:
        """The result of the function, with `ys` in place of its tensors that have a gradient."""
        others = dict(zip(map(id, self.ys), ys, strict=True))
        return tree_unflatten([others.get(id(y), y) for y in self._outputs], self._form)


class Replay:
    """A call that can be made again. Its tensors are kept elsewhere; for the first run they are `tensors`."""

    def __init__(self, recorder: Recorder, call: partial[Any]):
        self._function = call.func
        self._flowing, self._precision = recorder.flowing, recorder.precision
        given, self._spec = tree_flatten((call.args, call.keywords))
        self.tensors = list({id(t): t for t in given if isinstance(t, Tensor)}.values())
        places = {id(t): i for i, t in enumerate(self.tensors)}
        self._given = [(places[id(v)], None) if isinstance(v, Tensor) else (None, v) for v in given]
        self.followed = [recorder.slots.of(t) is not None for t in self.tensors]
        self._learns = [
            is_real(t) and (follows or t.requires_grad)
            for t, follows in zip(self.tensors, self.followed, strict=True)
        ]
        self.weights: list[Tensor] = []
        self.way: Way = ()
        devices = {torch.device("cpu"), *(t.device for t in self.tensors)}
        self._random = [(device, random_state(device)) for device in devices]
        self._autocast = [
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in {device.type for device in devices}
            if torch.amp.is_autocast_available(kind)
        ]

    def used(self, values: Sequence[Any]) -> list[Any]:
        """Select from `values`, one per tensor, those of tensors that have a gradient."""
        return [v for v, learns in zip(values, self._learns, strict=True) if learns]

    def first(self, around: Recorder) -> Run:
        run = self._run(self.tensors, Inside(self._flowing, self._precision, around))
        if run.ys:
            self.way = run.tape.way
            mine = set(map(id, run.leaves))
            self.weights = list(
                {id(w): w for y in run.ys for w in leaves_of(y) if id(w) not in mine}.values()
            )
        return run

    def again(self, tensors: Sequence[Tensor]) -> Run:
        recorder = Inside(self._flowing, self._precision)
        try:
            with self._as_it_was():
                run = self._run(tensors, recorder)
            if run.tape.way != self.way:
                raise UnsupportedModelError(CHANGED)
        except NotRecorded as no:
            raise UnsupportedModelError(f"{CHANGED} ({no})") from no
        finally:
            recorder.undo.roll_back()
        return run

    def _run(self, tensors: Sequence[Tensor], recorder: Inside) -> Run:
        pairs = list(zip(tensors, self._learns, strict=True))
        own = [t.detach().requires_grad_() if learns else t for t, learns in pairs]
        with torch.enable_grad():
            inside = [t.clone() if learns else t for t, (_, learns) in zip(own, pairs, strict=True)]
            recorder.begin_with([t for t, follows in zip(inside, self.followed, strict=True) if follows])
            versions = [t._version for t in inside]
            values = [v if place is None else inside[place] for place, v in self._given]
            args, kwargs = tree_unflatten(values, self._spec)
            with recorder:
                result = self._function(*args, **kwargs)
        if [t._version for t in inside] != versions:
            raise NotRecorded("a checkpointed function writes into its arguments")
        return Run(recorder, self.used(own), result)

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        before = [(device, random_state(device)) for device, _ in self._random]
        with ExitStack() as stack:
            stack.enter_context(seeing_checkpoints())
            for kind, dtype, enabled in self._autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            for device, state in self._random:
                set_random_state(device, state)
            try:
                yield
            finally:
                for device, state in before:
                    set_random_state(device, state)


# Its products and its gradient. ----------------------------------------------------------------------------


class Checkpointed:
    """The products of the step, with the interface of `ByAutograd`. Each product needs a run of its own."""

    refusal = None

    def __init__(self, replay: Replay, node: Any):
        """`node` is the node of the call in the user's graph. It keeps the tensors."""
        self._replay, self._node, self.way = replay, node, replay.way
        self._tensors = replay.tensors if node is None else []
        replay.tensors = []

    def _again(self) -> Run:
        return self._replay.again(self._tensors if self._node is None else held_by(self._node))

    def check(self, ys: Sequence[Tensor]) -> None:
        """Check that a second run computes the same results as the first."""
        for y, other in zip(ys, self._again().ys, strict=True):
            tolerance = 10 * torch.finfo(y.dtype).eps ** 0.5
            largest = float(y.detach().abs().max()) if y.numel() else 0.0
            if not torch.allclose(y, other, tolerance, tolerance * largest, equal_nan=True):
                raise UnsupportedModelError(CHANGED)

    @torch.no_grad()
    def pull(self, c: Any) -> Sequence[Tensor | None]:
        return self._listed(self._again().tape.vjp(c))

    @torch.no_grad()
    def push(self, *ts: Tensor | None) -> Any:
        return self._again().tape.jvp(_joined(ts))

    def pull_for_meeting(self, c: Any) -> tuple[Any, Sequence[Tensor | None]]:
        return c, self.pull(c)

    @torch.no_grad()
    def meet(self, c: Any, ts: Sequence[Any]) -> tuple[Any, Sequence[Tensor | None]]:
        """F(t), and the gradients of ⟨c, F(t)⟩ in what the call reads."""
        run, pairing = self._again(), Pairing()
        run.tape.vjp(c, pairing)
        y = run.tape.jvp(_joined(ts), pairing)
        return y, self._carried(run, pairing)

    @torch.no_grad()
    def pull_and_meet(self, c: Any, ts: Sequence[Any]) -> tuple[Any, Sequence[Tensor | None]]:
        run, pairing = self._again(), Pairing()
        run.tape.jvp(_joined(ts), pairing)
        pulled = self._listed(run.tape.vjp(c, pairing))
        return pulled, self._carried(run, pairing)

    def _listed(self, pulled: Any) -> Sequence[Tensor | None]:
        count = sum(self._replay.followed)
        return [None] * count if pulled is None else pulled if count > 1 else [pulled]

    def _carried(self, run: Run, pairing: Pairing) -> Sequence[Tensor | None]:
        """Carry the terms from the activations of the run back to its leaves and to weights."""
        weights = self._replay.weights
        with _without_hooks(weights):
            return pairing.at([*run.leaves, *weights])


def _joined(ts: Sequence[Any]) -> Any:
    return ts[0] if len(ts) == 1 else Parts(ts)


@contextmanager
def _without_hooks(weights: Sequence[Any]) -> Iterator[None]:
    """Keep the user's hooks on weights from firing. They fire later, on the final gradient."""
    hooked = [(w, w._backward_hooks) for w in weights if w._backward_hooks]
    for w, _ in hooked:
        w._backward_hooks = None
    try:
        yield
    finally:
        for w, hooks in hooked:
            w._backward_hooks = hooks


class _Recomputing(torch.autograd.Function):
    """The call in the user's graph. Its node keeps the arguments of the call."""

    @staticmethod
    def forward(ctx: Any, replay: Replay, ys: list[Tensor], *used: Tensor) -> Any:
        ctx.replay = replay
        ctx.save_for_backward(*replay.tensors)
        ctx.set_materialize_grads(False)
        return tuple(ys)

    @staticmethod
    def backward(ctx: Any, *cs: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedModelError(
                "J.output is differentiated twice, through a checkpointed call that jacnorm has recorded. "
                "Take the derivative of model(x) itself, or use the products of J."
            )
        replay, needed = ctx.replay, ctx.needs_input_grad[2:]
        run = replay.again(ctx.saved_tensors)
        pairs = [(y, c) for y, c in zip(run.ys, cs, strict=True) if c is not None]
        wanted = [t for t, need in zip([*run.leaves, *replay.weights], needed, strict=True) if need]
        with _without_hooks(replay.weights):
            found = iter(gradient([y for y, _ in pairs], wanted, [c for _, c in pairs], create_graph=False))
        return None, None, *[next(found) if need else None for need in needed]
