"""Hooks of the user on gradients. They fire when the loss is differentiated, and never for products of J."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.modules._functions import BackwardHookFunction
from torch.overrides import handle_torch_function, has_torch_function

from ..pytorch.switches import Switch
from ..pytorch.tracing import tracing
from .batchnorm import Gate

NAME = "backward_hook"


def _apply(*tensors: Any) -> Any:
    """The identity through which nn.Module passes arguments and results of modules with full backward hooks.
    This makes it visible to a recorder."""
    if has_torch_function(tensors):
        return handle_torch_function(_apply, tensors, *tensors)
    return torch.autograd.Function.apply.__func__(BackwardHookFunction, *tensors)  # type: ignore[attr-defined]


_apply.__name__ = NAME


class _Seen:
    def __enter__(self) -> None:
        hidden: Any = BackwardHookFunction
        hidden.apply = staticmethod(_apply)

    def __exit__(self, *_: object) -> None:
        del BackwardHookFunction.apply


_switch = Switch(_Seen)


def seeing_module_hooks() -> AbstractContextManager[Any]:
    return nullcontext() if tracing() else _switch


def muted(hook: Callable[..., Any], gate: Gate | None) -> Callable[..., Any]:
    """The hook, but not while products are taken."""
    return lambda *values: None if gate is not None and gate.quiet else hook(*values)


def node_for_hooks(node: Any, gate: Gate | None) -> Any:
    """The node. If nn.Module hangs its hooks on it, a wrapper that mutes these hooks."""
    is_module_hook = getattr(node, "_forward_cls", None) is BackwardHookFunction
    return _MutedNode(node, gate) if is_module_hook else node


class _MutedNode:
    def __init__(self, node: Any, gate: Gate | None):
        self._node, self._gate = node, gate

    def register_hook(self, hook: Callable[..., Any]) -> Any:
        return self._node.register_hook(muted(hook, self._gate))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)
