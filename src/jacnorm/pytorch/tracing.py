"""Tools for code that dynamo cannot follow, for steps that are compiled with torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from ..errors import UnsupportedModelError
from .switches import eager

Function = TypeVar("Function", bound=Callable[..., Any])


# Dynamo of torch 2.9 cannot pass modules to `while_tracing`. 2.13 is the oldest version known to work.
CAN_TRACE = torch.__version__ >= TorchVersion("2.13")

# Whether dynamo is tracing this code. If so, values cannot be read.
tracing = torch.compiler.is_dynamo_compiling


def inside_torch_func() -> bool:
    """Whether this runs inside torch.func (grad, vjp, vmap, …), where tensors hide their autograd graph.
    (While dynamo traces, this is not known.)
    """
    return not tracing() and torch._C._functorch.peek_interpreter_stack() is not None


def outside_torch_func() -> AbstractContextManager[Any]:
    """Leave torch.func transforms, to change the state of an object, such as its place in a random stream.
    A transform refuses such a write, and would leave its own tensors in the object."""
    return torch._C._DisableFuncTorch() if inside_torch_func() else nullcontext()


def uncompiled() -> AbstractContextManager[Any]:
    """Run compiled functions of the user eagerly, so that their calls can be recorded."""
    if tracing() or "torch._dynamo" not in sys.modules:  # without this module nothing is compiled
        return nullcontext()
    return eager


def while_tracing(function: Function) -> Function:
    """Let dynamo call the function itself, with the values that it traces for. The result is a constant.

    (torch.compiler.assume_constant_result does the same, but would import all of dynamo immediately.)
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@while_tracing
def refuse(message: str) -> None:
    """Raise an error that reaches the user unchanged, whether or not graph breaks are allowed."""
    raise UnsupportedModelError(message)


def gaussian(seed: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Gaussian random numbers from a new generator with this seed."""
    if tracing():
        return _opaque_gaussian(seed, shape, dtype, device)
    return _gaussian(seed, shape, dtype, device)


def _gaussian(seed: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(int(seed))
    return torch.randn(shape, generator=generator, dtype=dtype, device=device)


# Compiled code has no generators. It can call this operator, which gives the numbers of an eager step.
_opaque_gaussian = torch.library.custom_op("jacnorm::gaussian", _gaussian, mutates_args=())


@_opaque_gaussian.register_fake
def _(seed: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)
