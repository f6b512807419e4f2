"""Settings of PyTorch that are one for all threads, turned for a while."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from threading import Lock
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


class Switch:
    """The first thread that needs it turns it, and the last turns it back."""

    def __init__(self, turn: Callable[[], AbstractContextManager[Any]]):
        self._turn, self._turned = turn, ExitStack()
        self._lock, self._users = Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._turned.enter_context(self._turn())
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._turned.close()


# Attention without fused kernels, which have no second derivative.
unfused_attention = Switch(lambda: sdpa_kernel(SDPBackend.MATH))
# What the user has compiled runs eagerly.
eager = Switch(lambda: torch.compiler.set_stance("force_eager"))
