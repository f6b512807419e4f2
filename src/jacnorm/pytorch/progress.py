"""The progress of a loop, shown if it takes longer than a second."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WAIT = 1.0  # seconds before the first line, and between two lines
NOTEBOOK = "ipykernel"


class Progress:
    """A line on a terminal or in a notebook. It is updated in place, and removed at the end."""

    def __init__(self, what: str, total: int | None, stream: TextIO | None = None):
        self._what, self._total, self._stream = what, total, stream or sys.stderr
        self._seen = self._stream.isatty() or NOTEBOOK in sys.modules
        self._begin = self._last = time.monotonic()
        self._shown = 0  # characters on the line

    def done(self, count: int) -> None:
        now = time.monotonic()
        if not self._seen or now - self._last < WAIT:
            return
        self._last = now
        of = f" of {self._total:,}" if self._total else ""
        rest = (
            f", {_minutes((self._total - count) * (now - self._begin) / count)} left" if self._total else ""
        )
        self._write(f"{self._what}: {count:,}{of} samples{rest}")

    def close(self) -> None:
        if self._shown:
            self._write("")
            self._stream.write("\r")

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text.ljust(self._shown)}")
        self._stream.flush()
        self._shown = len(text)


def _minutes(seconds: float) -> str:
    """
    >>> _minutes(42.4), _minutes(150)
    ('42 s', '2.5 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
