"""Settings of PyTorch that all threads share, changed for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


class Switch:
    """A setting. The first thread that needs it changes it, and the last thread changes it back."""

    def __init__(self, turn: Callable[[], AbstractContextManager[Any]]):
        self._turn = turn
        self._turned: AbstractContextManager[Any] = nullcontext()
        self._lock, self._users = Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._turned = self._turn()
                self._turned.__enter__()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._turned.__exit__(None, None, None)


# Attention without fused kernels, which have no second derivative.
unfused_attention = Switch(lambda: sdpa_kernel(SDPBackend.MATH))


class _Eager:
    """Does the same as `torch.compiler.set_stance("force_eager")`, and is ten times as fast to create."""

    def __enter__(self) -> None:
        self._before = eval_frame()._set_stance(eval_frame().DynamoStance("force_eager"))

    def __exit__(self, *_: object) -> None:
        eval_frame()._set_stance(self._before)


def eval_frame() -> Any:
    return torch._dynamo.eval_frame


# Compiled functions of the user run eagerly.
eager = Switch(_Eager)
