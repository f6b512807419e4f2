"""The machine that a run is on: what a result says of it, and how its memory is kept."""

from __future__ import annotations

import ctypes
import platform
import sys
from typing import Any

import numpy
import torch

from .. import __version__

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 1 << 30  # bytes at the end of the heap
LARGEST = 1 << 25  # bytes of one block on the heap, the most that glibc takes


def keep_memory() -> None:
    """Keep glibc from handing memory back to the system after every training step.

    Activations are freed at the end of a step and allocated again in the next. By default their memory goes
    back to the system in between and is faulted in again, page by page. That takes a fifth of a LeNet's step.
    It is for the whole process, so only for processes that are ours. Without glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST)


def environment(device: torch.device | str) -> dict[str, Any]:
    """Where a result came from."""
    return {
        "jacnorm": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "threads": torch.get_num_threads(),
    }
