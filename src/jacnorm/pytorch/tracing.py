"""What dynamo cannot follow, for steps that are compiled with torch.compile."""

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


# Dynamo of torch 2.9 cannot pass modules to `while_tracing`; 2.13 is the oldest that was found to.
CAN_TRACE = torch.__version__ >= TorchVersion("2.13")

# Whether dynamo is tracing this very line: then no value can be looked at.
tracing = torch.compiler.is_dynamo_compiling


def inside_torch_func() -> bool:
    """Inside grad, vjp, vmap and the like, where tensors hide what autograd would tell of them. (While dynamo
    traces, that cannot be asked.)
    """
    return not tracing() and torch._C._functorch.peek_interpreter_stack() is not None


def outside_torch_func() -> AbstractContextManager[Any]:
    """For what belongs to an object and not to the function that is transformed, such as a place in a stream:
    a transform refuses to write into it, and would leave its own tensors there."""
    return torch._C._DisableFuncTorch() if inside_torch_func() else nullcontext()


def uncompiled() -> AbstractContextManager[Any]:
    """What the user has compiled runs eagerly, so that its calls can be seen."""
    if tracing() or "torch._dynamo" not in sys.modules:  # nothing is compiled without it
        return nullcontext()
    return eager


def while_tracing(function: Function) -> Function:
    """Dynamo calls the function itself, with the values that it traces for; the result is a constant to it.

    (What torch.compiler.assume_constant_result does, which would import all of dynamo here and now.)
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@while_tracing
def refuse(message: str) -> None:
    """An error that reaches the user as it is, whether graphs may break or not."""
    raise UnsupportedModelError(message)


def gaussian(seed: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random numbers from a generator of their own."""
    if tracing():
        return _opaque_gaussian(seed, shape, dtype, device)
    return _gaussian(seed, shape, dtype, device)


def _gaussian(seed: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(int(seed))
    return torch.randn(shape, generator=generator, dtype=dtype, device=device)


# Compiled code knows no generators, but it can call this, so that its numbers are those of an eager step.
_opaque_gaussian = torch.library.custom_op("jacnorm::gaussian", _gaussian, mutates_args=())


@_opaque_gaussian.register_fake
def _(seed: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)
