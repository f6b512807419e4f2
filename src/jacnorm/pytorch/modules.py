"""The modules of a model, their names, and how to restore their state."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from threading import get_ident
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy


def modules_of(model: Any) -> dict[str, nn.Module]:
    """The modules by name: the model itself (""), or the modules that a function or an object holds."""
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, functools.partial):
        return modules_of(model.func)
    if isinstance(owner := getattr(model, "__self__", None), nn.Module):
        return {"": owner}
    held = _held_by(model) if inspect.isfunction(model) else getattr(model, "__dict__", {})
    return {name: value for name, value in held.items() if isinstance(value, nn.Module)}


def _held_by(function: FunctionType) -> dict[str, Any]:
    """The variables that a function uses, from its module and from enclosing functions."""
    code, around = function.__code__, function.__globals__
    held = {name: around[name] for name in code.co_names if name in around}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the variable has no value yet
            held[name] = cell.cell_contents
    return held


def paths(modules: dict[str, nn.Module]) -> dict[int, str]:
    """The dotted path of each submodule, by its id."""
    found: dict[int, str] = {}
    for root, module in modules.items():
        for path, submodule in module.named_modules(prefix=root):
            found.setdefault(id(submodule), path)
    return found


def named_parameters(modules: dict[str, nn.Module]) -> list[tuple[str, nn.Parameter]]:
    return [pair for root, module in modules.items() for pair in module.named_parameters(prefix=root)]


def random_state(device: torch.device) -> Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state()


def set_random_state(device: torch.device, state: Tensor) -> None:
    (torch if device.type == "cpu" else torch.get_device_module(device)).set_rng_state(state)


@contextmanager
def unchanged(modules: dict[str, nn.Module], device: torch.device) -> Iterator[None]:
    """Restore buffers, gradients and the random state at the end.

    If the model is a function and its modules are unknown, this covers the modules that it calls.
    """
    state = _State()
    for module in modules.values():
        state.keep(module)
    here = get_ident()  # the hook also sees the modules of other threads
    calls = (
        nullcontext()
        if modules
        else register_module_forward_pre_hook(lambda m, _: state.keep(m) if get_ident() == here else None)
    )
    try:
        with calls, torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        state.restore()


class _State:
    """The state of modules when they were first seen."""

    def __init__(self) -> None:
        self._buffers: dict[Tensor, Tensor] = {}  # tensors are hashed by identity
        self._gradients: dict[nn.Parameter, Tensor | None] = {}

    def keep(self, module: nn.Module) -> None:
        for buffer in module.buffers():
            if buffer not in self._buffers and not is_lazy(buffer):
                self._buffers[buffer] = buffer.detach().clone()
        for parameter in module.parameters():
            if parameter not in self._gradients:
                self._gradients[parameter] = parameter.grad
                parameter.grad = None

    def restore(self) -> None:
        with torch.no_grad():
            for buffer, before in self._buffers.items():
                if not torch.equal(buffer, before):  # a needless write would break graphs that saved it
                    buffer.copy_(before)
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient
