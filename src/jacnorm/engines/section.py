"""The part of a model whose Jacobian is taken: all of it, or the part between two of its submodules."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError, UnsupportedModelError
from ..pytorch.outputs import Name, Output, chosen
from ..pytorch.sharded import Sharding
from ..pytorch.tracing import uncompiled
from ..trust.checks import check_output, run
from .ancestry import STARTS_A_RECORD, Ancestry
from .checkpointed import check_outside, count_outside, seeing_checkpoints
from .hooks import seeing_module_hooks
from .recorder import Recorder
from .tape import Slot

Shapes = tuple[torch.Size, ...]  # of a sample of each of several inputs


def side_by_side(xs: Sequence[Tensor]) -> Tensor:
    """Several inputs in one row per sample."""
    return torch.cat([x.reshape(len(x), -1) for x in xs], 1)


def apart(row: Tensor, shapes: Shapes) -> tuple[Tensor, ...]:
    """The inverse of `side_by_side`."""
    pieces = row.split([shape.numel() for shape in shapes], 1)
    return tuple([p.reshape(row.shape[0], *shape) for p, shape in zip(pieces, shapes, strict=True)])


def inputs(x: Tensor, shapes: Shapes | None) -> tuple[Tensor, ...]:
    """The inputs of the model: x, or the inputs that x holds side by side."""
    return (x,) if shapes is None else apart(x, shapes)


class Place(NamedTuple):
    """An activation of the run. It has no slot if it does not depend on x, or if nothing is recorded."""

    slot: Slot | None
    shape: torch.Size
    dtype: torch.dtype


class Section:
    """From x, or the output of submodule `at`, to the output of the model, or the output of submodule `to`.

    After `run`, `first` and `last` are these two tensors. With `graph`, autograd's graph links them. `result`
    is what the model returned. `chosen` is the name of the output in it, if it was chosen by default.
    """

    first: Tensor
    last: Tensor
    result: Any
    chosen: Name | None = None

    def __init__(
        self,
        model: Any,
        args: Any,
        kwargs: Any,
        at: str | None,
        to: str | None,
        through: Sequence[str] = (),
        shapes: Shapes | None = None,
        sharding: Sharding | None = None,
        output: Output = None,
    ):
        self._sharding, self._output = sharding, output
        self._shapes = shapes
        self.model, self.at, self.to = model, at, to
        self._args, self._kwargs = args, kwargs
        self._hooked = [(_submodule(model, name), name) for name in (at, to) if name is not None]
        self._passed = [(_submodule(model, name), name) for name in through]
        self.places: dict[str, Place] = {}  # of the outputs of `through`

    def run(self, x: Tensor, recorder: Recorder, *, graph: bool) -> Tensor:
        """model(x), recorded between the two ends."""
        self._recorder, self._graph = recorder, graph
        self._seen: set[str] = set()
        self._ancestry: Ancestry | None = None
        # A copy, so that the model may write into it.
        inside = self._begin(x) if self.at is None else x.clone()
        handles = [submodule.register_forward_hook(self._hook(n, len(x))) for submodule, n in self._hooked]
        handles += [submodule.register_forward_hook(self._note(n, len(x))) for submodule, n in self._passed]
        try:
            with recorder, uncompiled(), seeing_module_hooks(), seeing_checkpoints(), self._sharded():
                self.result = run(self.model, *inputs(inside, self._shapes), *self._args, **self._kwargs)
                output, name = chosen(self.result, self._output, len(x))
        finally:
            for handle in handles:
                handle.remove()
        check_output(output, x, self.model)
        if self.to is None:
            self.chosen = name
            self._end(output)
        if self._hooked:
            self._check_ends()
        for _, name in self._passed:
            if name not in self.places:
                raise InputError(f"The model did not run its submodule {name!r} on this input.")
        return output

    def _sharded(self) -> AbstractContextManager[Any]:
        if self._sharding is None:
            return nullcontext()
        for part in self._sharding.parts:
            self._recorder.reads.add(part)
        writer = self._recorder.writer
        return self._sharding.noting(lambda: count_outside(writer.steps), writer.within)

    def _begin(self, x: Tensor) -> Tensor:
        """The tensor with which the model continues instead of x."""
        self.first = _leaf(x) if self._graph else x
        inside = self.first.clone()
        self._ancestry = Ancestry(inside) if self._hooked else None
        self._recorder.begin(inside)
        return inside

    def _end(self, y: Tensor) -> None:
        self.last = y
        self._recorder.end(y)

    def _hook(self, name: str, batch: int) -> Callable[..., Tensor | None]:
        def hook(module: nn.Module, args: Any, output: Any) -> Tensor | None:
            check_outside(name)
            _check_hidden(name, output, batch)
            _check_once(name, self._seen)
            # Copies, because a layer may return its input, and the model may change its output in place.
            if name == self.at:
                output = self._begin(output.clone())
            if name == self.to:
                self._end(output.clone())
            self._seen.add(name)
            return output if name == self.at else None

        return hook

    def _note(self, name: str, batch: int) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            check_outside(name)
            _check_hidden(name, output, batch)
            _check_once(name, self.places)
            slot = self._recorder.slots.of(output)
            if slot is not None:
                self._recorder.writer.ends.add(slot)
            self.places[name] = Place(slot, output.shape, output.dtype)

        return hook

    def _check_ends(self) -> None:
        for _, name in self._hooked:
            if name not in self._seen:
                raise InputError(f"The model did not run its submodule {name!r} on this input.")
        if self._graph and not (self._ancestry and self._ancestry.has(self.last)):
            last = "The model's output" if self.to is None else f"The output of {self.to!r}"
            first = "x" if self.at is None else f"the output of {self.at!r}"
            raise InputError(
                f"{last} does not depend on {first}: is it computed before it, or on another branch?"
            )


def _leaf(x: Tensor) -> Tensor:
    """x as a new leaf. Another argument that depends on x is then a constant."""
    if x.requires_grad:
        return x.view_as(x)
    try:
        leaf = x.detach().requires_grad_()
    except RuntimeError as error:
        raise UnsupportedModelError(
            "A transform of torch.func (grad, vjp, vmap, …) works through linearize only if the layerwise "
            "engine works and knows the model: call linearize once outside of it. For other models give "
            "functional_call parameters that require gradients, and differentiate with torch.autograd.grad."
        ) from error
    setattr(leaf, STARTS_A_RECORD, True)
    return leaf


def _submodule(model: Any, name: str) -> nn.Module:
    model = getattr(model, "_orig_mod", model)  # inside what torch.compile returned
    if not isinstance(model, nn.Module):
        raise InputError(
            f"Submodules have names in an nn.Module, found {type(model).__name__}: pass the module itself. "
            "(output= chooses one of its outputs.)"
        )
    named = {known: module for known, module in model.named_modules() if known}
    if name not in named:
        close = get_close_matches(str(name), named, n=3, cutoff=0.5) or list(named)[:8]
        raise InputError(
            f"The model has no submodule {name!r}. Did you mean {' or '.join(map(repr, close))}? "
            "model.named_modules() lists them all."
            if close
            else f"The model has no submodules, so none called {name!r}."
        )
    return named[name]


def _check_once(name: str, seen: Container[str]) -> None:
    if name in seen:
        raise InputError(
            f"The submodule {name!r} runs more than once in model(x), so its output is not one "
            "tensor. Name another submodule, or use a separate module for each call."
        )


def _check_hidden(name: str, y: object, batch: int) -> None:
    if not isinstance(y, Tensor) or not y.is_floating_point():
        kind = y.dtype if isinstance(y, Tensor) else type(y).__name__
        raise InputError(
            f"The submodule {name!r} returned {kind}; a Jacobian needs a single tensor of real numbers. "
            "Name a submodule inside it, or one that comes after."
        )
    if y.dim() == 0 or len(y) != batch:
        raise InputError(
            f"The output of the submodule {name!r} has shape {tuple(y.shape)} for a batch of {batch}: its "
            "first axis must be the batch."
        )
