"""Runs a model once under a recorder that also notes where each call was made, and its result."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from .. import engines
from ..engines.calls import CONSTANT, canonical_name, opened
from ..engines.recorder import Recorder
from ..engines.section import Section
from ..engines.tape import Slot, Step
from ..errors import CoupledSamplesError, UnsupportedModelError
from ..pytorch.outputs import Output
from ..trust import checks
from ..trust.verify import check_independent

PIECEWISE = frozenset(
    [
        *(
            "relu",
            "leaky_relu",
            "prelu",
            "rrelu",
            "hardtanh",
            "relu6",
            "hardsigmoid",
            "threshold",
            "hardshrink",
        ),
        *(
            "softshrink",
            "abs",
            "absolute",
            "__abs__",
            "clamp",
            "clip",
            "clamp_min",
            "clamp_max",
            "maximum",
            "fmax",
        ),
        *("minimum", "fmin", "amax", "amin", "max", "min", "sort", "topk", "kthvalue", "median", "where"),
        *(
            f"{kind}max_pool{n}d{more}"
            for kind in ("", "adaptive_")
            for n in (1, 2, 3)
            for more in ("", "_with_indices")
        ),
        *(
            "dropout",
            "dropout1d",
            "dropout2d",
            "dropout3d",
            "feature_dropout",
            "alpha_dropout",
            "feature_alpha_dropout",
        ),
    ]
)
ENOUGH = 8  # values that a unit needs before it may be called dead
MACHINERY = tuple(str(Path(module.__path__[0])) + os.sep for module in (torch, engines))
MACHINERY += (os.path.dirname(__file__) + os.sep,)


@dataclass(frozen=True)
class Call:
    """One call with an argument that depends on the input."""

    name: str
    layer: str  # the path of the module that made it
    line: str | None  # the line in the user's code
    shape: torch.Size
    rule: str | None  # the kind of its rule; None if it is computed by autograd
    reason: str | None  # why it is computed by autograd
    seconds: float
    finite: bool
    dead: float  # the fraction of a ReLU's units that are zero for every sample
    training: bool  # whether it is batch norm with the statistics of the batch

    @property
    def where(self) -> str:
        return where(self.layer, self.line)


class Examiner(Recorder):
    """Notes each call."""

    def __init__(self, x: Tensor, paths: dict[int, str], at: str | None = None, output: Output = None):
        super().__init__(flowing=False)
        self._x, self._at, self._output = x, at, output
        self.calls: list[Call] = []
        self._outputs: list[tuple[Tensor, Slot | None]] = []
        self.paths = paths

    def another(self) -> Examiner:
        """A new examiner with the same options, for another run."""
        return Examiner(self._x, self.paths, self._at, self._output)

    def run(self, model: Any) -> None:
        with torch.enable_grad():
            section = Section(model, (), {}, self._at, None, output=self._output)
            section.run(self._x, self, graph=True)

    def first_coupled(self) -> Call | None:
        """The first call after which samples depend on each other."""
        for call, (y, slot) in zip(self.calls, self._outputs, strict=True):
            if slot is not None and y.is_floating_point() and y.shape[:1] == self._x.shape[:1]:
                assert self._source is not None
                try:
                    check_independent(self.writer.tape(self._source, slot), y.detach())
                except CoupledSamplesError:
                    return call
                except (UnsupportedModelError, RuntimeError):  # its tensors were overwritten later
                    continue
        return None

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Any) -> Any:
        before, count = self.slots.entry(args[0]) if args else None, len(self.writer.steps)
        noted = len(self.calls)
        wait_for(self._x.device)
        begin = time.perf_counter()
        y = super()._call(func, args, kwargs, slots)
        wait_for(self._x.device)
        seconds = time.perf_counter() - begin
        if opened(func) is not None and len(self.calls) > noted:  # the calls inside it were noted instead
            return y
        result = args[0] if y is None else y  # an assignment returns nothing
        same = before is not None and self.slots.entry(result) is before  # dropout in evaluation
        if not same:
            self._note(func, args, kwargs, _first_real(result), seconds, self.writer.steps[count:])
        return y

    def _note(self, func: Any, args: Any, kwargs: Any, y: Tensor | None, seconds: float, steps: Any) -> None:
        name, _ = canonical_name(func, args)
        if y is None or (name in CONSTANT and not (_stops_a_gradient(name) and torch.is_grad_enabled())):
            return  # inside an autograd function of the user, whose own backward pass counts
        if not steps and name not in CONSTANT:
            return
        layer, line = place(traceback.walk_stack(sys._getframe(2)), self.paths)
        training = name == "batch_norm" and bool(args[5] if len(args) > 5 else kwargs.get("training"))
        with torch.no_grad():
            finite, dead = bool(torch.isfinite(y).all()), _dead_part(y) if name == "relu" else 0.0
        rule, reason = ("constant", None) if not steps else self._how(name, steps[0])
        self.calls.append(
            Call(_plain(name), layer, line, y.shape, rule, reason, seconds, finite, dead, training)
        )
        self._outputs.append((y, self.slots.of(y)))

    def _how(self, name: str, step: Step) -> tuple[str | None, str | None]:
        """The kind of its rule, or why it has no rule."""
        if step.by_autograd is not None:
            return None, self.without_rule.get(name, "it has no rule")
        if any(position < 0 for position in step.reads):
            return "smooth", None
        return ("piecewise linear" if name in PIECEWISE else "linear"), None


def place(frames: Iterable[tuple[FrameType, int]], paths: dict[int, str]) -> tuple[str, str | None]:
    """The innermost module that is being called, and the innermost line outside of PyTorch and jacnorm."""
    layer, line = None, None
    for frame, number in frames:
        file, owner = frame.f_code.co_filename, frame.f_locals.get("self")
        if file == checks.__file__:  # frames outside of this one do not belong to the model
            break
        if layer is None and isinstance(owner, nn.Module):
            layer = paths.get(id(owner), type(owner).__name__)
        if line is None and not file.startswith(MACHINERY):
            line = f"{_short(file)}:{number}"
    return layer or "", line


def where(layer: str, line: str | None) -> str:
    return ", ".join(filter(None, [layer and f"layer {layer}", line])) or "the model itself"


def wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _short(file: str) -> str:
    here = os.path.relpath(file) if os.path.isabs(file) else file
    return os.path.basename(file) if here.startswith("..") else here


def _plain(name: str) -> str:
    return name.removeprefix("get ").strip("_")


def _stops_a_gradient(name: str) -> bool:
    return not name.startswith("new_") and not name.endswith("_like")


def _first_real(y: Any) -> Tensor | None:
    """The first tensor of a result that can carry a derivative."""
    if isinstance(y, Tensor):
        return y if y.is_floating_point() or y.is_complex() else None
    if isinstance(y, list | tuple) and not isinstance(y, torch.Size):
        return next((t for t in map(_first_real, y) if t is not None), None)
    return None


def _dead_part(y: Tensor) -> float:
    if y.dim() not in (2, 4) or y.numel() < ENOUGH * y.shape[1]:  # units are on axis 1 of these only
        return 0.0
    alive = (y > 0).transpose(0, 1).flatten(1).any(1)
    return 1 - float(alive.float().mean())
