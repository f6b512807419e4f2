"""Mixed precision: recorded calls keep the autocast under which they ran; norms use at least float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

CPU = torch.device("cpu")
NOTHING = nullcontext()
HALF = frozenset((torch.float16, torch.bfloat16))
Function = TypeVar("Function", bound=Callable[..., Any])


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, else the dtype itself. (Sums in half precision lose digits or overflow.)"""
    return torch.float32 if dtype in HALF else dtype


# Whether autocast is on for any device. Asking for a single device takes much longer.
any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


def is_autocast(kind: str) -> bool:
    """On this kind of device. (Some, as meta, have none, and must not be asked.)"""
    return (
        any_autocast_enabled() and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    )


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    if is_autocast(device.type):
        return torch.autocast(device.type, enabled=False)
    return NOTHING


def in_full_precision(estimate: Function) -> Function:
    """Run an estimator without autocast. Products with J choose their own precision."""

    @wraps(estimate)
    def wrapped(J: Any, *args: Any, **kwargs: Any) -> Any:
        with without_autocast(getattr(J, "device", CPU)):  # anything else raises its own error later
            return estimate(J, *args, **kwargs)

    return wrapped  # type: ignore[return-value]


def as_recorded(push: Any, pull: Any, terms: Any, dtypes: list[torch.dtype], y: Tensor) -> Any:
    """The three functions of a rule, in the precision in which y was just computed. `dtypes` are those of the
    arguments."""
    kind, target = y.device.type, y.dtype  # not y itself, since the functions would keep it alive
    is_alike = all(dtype == target for dtype in dtypes)
    is_cast = is_autocast(kind)
    if is_alike and not (is_cast and target == torch.get_autocast_dtype(kind)):
        return push, pull, terms  # a call that autocast has left in float32 stays so
    if is_cast:
        autocast = partial(torch.autocast, kind, dtype=torch.get_autocast_dtype(kind))
        push, pull = _under(autocast, push), _under(autocast, pull)

    def pull_back(*values: Tensor) -> list[Tensor | None]:
        return [c if c is None else _as(c, d) for c, d in zip(pull(*values), dtypes, strict=True)]

    def meet(*values: Any) -> Any:
        """The terms, in the precision of the cotangent, which is that of the result."""
        c = values[-1 - len(dtypes)]
        return terms(*[v.to(c.dtype) if _is_real(v) else v for v in values])

    return (lambda *values: push(*values).to(target)), pull_back, terms and meet


def _as(c: Tensor, dtype: torch.dtype) -> Tensor:
    """c in this dtype. (The cotangent of a real number has no imaginary part.)"""
    return (c.real if c.is_complex() and not dtype.is_complex else c).to(dtype)


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _under(context: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*vectors: Any) -> Any:
        with context():
            return function(*vectors)

    return inside
