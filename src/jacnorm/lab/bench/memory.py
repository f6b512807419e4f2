"""Peak memory of an optimizer step, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from statistics import median
from typing import Any

from ..evaluate.common import progress
from .nets import batch, make
from .step import stepper
from .ways import WAYS

STATUS = Path("/proc/self/status")
PROCESSES = 3


def growth(net: str, size: int, names: list[str], width: float) -> dict[str, float]:
    """MB that a step on a batch of this size adds to the process; "plain" is the step without penalty.

    The first step counts too, in which the model is verified. The median of some processes: where
    tensors come to lie in memory is partly luck.
    """
    if not STATUS.exists():  # not on Linux
        return {}
    context = multiprocessing.get_context("spawn")
    found = {}
    with progress(len(names) + 1, "memory", " ways") as bar:
        for name in ("plain", *names):
            with context.Pool(1, maxtasksperchild=1) as pool:
                peaks = [pool.apply(_measure, (net, size, name, width)) for _ in range(PROCESSES)]
            found[name] = median(peaks)
            bar.update()
    return found


def _measure(net: str, size: int, name: str, width: float) -> float:
    way: Any = next((w.make for w in WAYS if w.name == name), None)
    model = make(net, width=width)
    stepper(model, way, batch(net, 2))()  # loads libraries
    step = stepper(model, way, batch(net, size))
    _forget_peak()
    before = _peak()
    for _ in range(2):
        step()
    return _peak() - before


def _peak() -> float:
    """MB that this process has held at most since it was last forgotten."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
