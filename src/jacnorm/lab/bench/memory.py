"""Peak memory of an optimizer step, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from typing import Any

from ..evaluate.common import progress
from .nets import batch, make
from .timing import stepper
from .ways import WAYS


def growth(net: str, size: int, names: list[str], width: float = 1.0) -> dict[str, float]:
    """MB that a step on a batch of this size adds to the process; "plain" is the step without penalty."""
    context = multiprocessing.get_context("spawn")
    found = {}
    with progress(len(names) + 1, "memory", " ways") as bar:
        for name in ("plain", *names):
            with context.Pool(1) as pool:
                found[name] = pool.apply(_measure, (net, size, name, width))
            bar.update()
    return found


def _measure(net: str, size: int, name: str, width: float) -> float:
    way: Any = next((w.make for w in WAYS if w.name == name), None)
    model = make(net, width=width)
    stepper(model, way, batch(net, 2))()  # loads libraries and verifies the model
    step = stepper(model, way, batch(net, size))
    before = _peak()
    for _ in range(2):
        step()
    return _peak() - before


def _peak() -> float:
    """MB; the system counts in KB, macOS in bytes."""
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
