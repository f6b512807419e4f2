"""Mixed precision: recorded calls are replayed under the autocast they ran in; norms take float32 or more."""

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
    """What to sum squares in: half precision loses digits in long sums, or overflows."""
    return torch.float32 if dtype in HALF else dtype


# On any device; to ask for one of them takes much longer.
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
    """Products with J choose their precision themselves; the algebra around them must not be autocast."""

    @wraps(estimate)
    def wrapped(J: Any, *args: Any, **kwargs: Any) -> Any:
        with without_autocast(getattr(J, "device", CPU)):  # what is no operator gets its own error
            return estimate(J, *args, **kwargs)

    return wrapped  # type: ignore[return-value]


def as_recorded(push: Any, pull: Any, terms: Any, dtypes: list[torch.dtype], y: Tensor) -> Any:
    """The three functions of a rule in the precision in which y was just computed, from arguments of these
    dtypes."""
    kind, target = y.device.type, y.dtype  # not y itself, which would be kept
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
        """In the precision of the cotangent, which is the result's."""
        c = values[-1 - len(dtypes)]
        return terms(*[v.to(c.dtype) if _is_real(v) else v for v in values])

    return (lambda *values: push(*values).to(target)), pull_back, terms and meet


def _as(c: Tensor, dtype: torch.dtype) -> Tensor:
    """(The cotangent of a real number has no imaginary part.)"""
    return (c.real if c.is_complex() and not dtype.is_complex else c).to(dtype)


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _under(context: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*vectors: Any) -> Any:
        with context():
            return function(*vectors)

    return inside
