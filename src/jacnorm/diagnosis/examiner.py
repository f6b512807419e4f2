"""Runs a model once under a recorder that also writes down where each call was made and what it gave."""

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

from .. import checks, engines
from ..engines.autograd import Graph
from ..engines.batchnorm import Gate
from ..engines.calls import CONSTANT, canonical_name
from ..engines.recorder import Recorder
from ..engines.rules import RULES
from ..errors import CoupledSamplesError, UnsupportedModelError
from ..switches import unfused_attention
from ..tracing import uncompiled
from ..verify import check_independent

ENOUGH = 8  # values of a ReLU, before it may be called dead
MACHINERY = tuple(str(Path(module.__path__[0])) + os.sep for module in (torch, engines))
MACHINERY += (os.path.dirname(__file__) + os.sep,)


@dataclass(frozen=True)
class Call:
    """One call on something that depends on the input."""

    name: str
    layer: str  # path of the module that made it
    line: str | None  # of the user's code
    shape: torch.Size
    rule: str | None  # how the layerwise engine takes it; None if it does not
    reason: str | None  # why not
    seconds: float
    finite: bool
    dead: float  # the part of a ReLU's units that are zero for every sample
    training: bool  # batch norm that takes the batch's statistics

    @property
    def where(self) -> str:
        return where(self.layer, self.line)


class Examiner(Recorder):
    """Each call is judged by itself, also after others that have no rule."""

    def __init__(self, x: Tensor, paths: dict[int, str]):
        self._leaf = x.detach().clone().requires_grad_()
        self._inside = self._leaf.clone()  # so that the model may write into its input
        super().__init__(flowing=False, gate=Gate())
        self.begin(self._inside)
        self.calls: list[Call] = []
        self._outputs: list[Tensor] = []
        self.paths, self._depended = paths, False

    def run(self, model: Any) -> None:
        with torch.enable_grad(), self, uncompiled(), unfused_attention:
            checks.run(model, self._inside)

    def first_coupled(self) -> Call | None:
        """The first call after which samples see each other."""
        assert self._gate is not None
        for call, y in zip(self.calls, self._outputs, strict=True):
            if y.is_floating_point() and y.shape[:1] == self._leaf.shape[:1]:
                try:
                    check_independent(Graph(self._leaf, y, self._gate), y)
                except CoupledSamplesError:
                    return call
                except UnsupportedModelError:  # was written over later
                    continue
        return None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.reason, self._depended = None, False
        before = self.slots.entry(args[0]) if args else None
        wait_for(self._leaf.device)
        begin = time.perf_counter()
        y = super().__torch_function__(func, types, args, kwargs)
        wait_for(self._leaf.device)
        seconds = time.perf_counter() - begin
        if self._depended or self.reason:
            result = args[0] if y is None else y  # an assignment returns nothing
            same = before is not None and self.slots.entry(result) is before  # dropout in evaluation
            if not same:
                self._note(func, args, kwargs or {}, _first_real(result), seconds)
        return y

    def _call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._depended = True
        return super()._call(func, args, kwargs)

    def _follow(self, result: Any, without_rule: str = "a call") -> Any:
        self.reason = self.reason or f"{without_rule} has no piecewise linear rule"
        return super()._follow(result, without_rule)

    def _note(self, func: Any, args: Any, kwargs: Any, y: Tensor | None, seconds: float) -> None:
        name, _ = canonical_name(func, args)
        if y is None or (name in CONSTANT and not (_stops_a_gradient(name) and torch.is_grad_enabled())):
            return  # inside an autograd function of the user's, its backward pass says what follows
        layer, line = place(traceback.walk_stack(sys._getframe(2)), self.paths)
        training = name == "batch_norm" and bool(args[5] if len(args) > 5 else kwargs.get("training"))
        with torch.no_grad():
            finite, dead = bool(torch.isfinite(y).all()), _dead_part(y) if name == "relu" else 0.0
        rule = None if self.reason else _rule(name)
        self.calls.append(
            Call(_plain(name), layer, line, y.shape, rule, self.reason, seconds, finite, dead, training)
        )
        self._outputs.append(y)


def place(frames: Iterable[tuple[FrameType, int]], paths: dict[int, str]) -> tuple[str, str | None]:
    """The innermost module that is being called, and the innermost line that is not the machinery's."""
    layer, line = None, None
    for frame, number in frames:
        file, owner = frame.f_code.co_filename, frame.f_locals.get("self")
        if file == checks.__file__:  # outside of it is not the model any more
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


def _rule(name: str) -> str:
    if name == "batch_norm":  # in training mode too, as the statistics are held
        return "linear"
    if name in CONSTANT:
        return "constant"
    return "piecewise linear" if RULES[name].kind == "piecewise" else "linear"


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
