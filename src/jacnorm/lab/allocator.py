"""Keeps glibc from handing memory back to the system after every training step.

Activations are freed at the end of a step and allocated again in the next. By default their memory goes back
to the system in between and is faulted in anew, page by page, which takes a fifth of a LeNet's step.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 1 << 30  # bytes at the end of the heap
LARGEST = 1 << 25  # bytes of one block on the heap, the most that glibc takes


def keep_memory() -> None:
    """For the whole process, so only for processes that are ours. Nothing happens where libc is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST)
