"""Mixed precision: recorded calls are replayed under the autocast they ran in; norms are taken in float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
Function = TypeVar("Function", bound=Callable[..., Any])


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """What to sum squares in: half precision loses digits in long sums, or overflows."""
    return torch.float32 if dtype in HALF else dtype


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def in_full_precision(estimate: Function) -> Function:
    """Products with J choose their precision themselves; the algebra around them must not be autocast."""

    @wraps(estimate)
    def wrapped(J: Any, *args: Any, **kwargs: Any) -> Any:
        with without_autocast(J.device):
            return estimate(J, *args, **kwargs)

    return wrapped  # type: ignore[return-value]


def autocast_at(y: Tensor) -> Callable[[], AbstractContextManager[Any]] | None:
    """The autocast under which y was just computed, to be entered again; None without."""
    kind = y.device.type
    if not torch.is_autocast_enabled(kind):
        return None
    dtype = torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype)
