"""Cost: the time of an optimizer step over that of a plain step of the same model, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from torch import nn

from ..evaluate.common import progress
from .step import Batch, stepper
from .ways import BLOCK, Way

SECONDS = 2.0  # of plain steps in all, shared out over the rounds
ROUNDS = 15


def costs(model: nn.Module, ways: Sequence[Way], batch: Batch) -> dict[str, float]:
    """Median over rounds in which every way has its turn, so that a busy machine slows all of them."""
    steps = {way.name: stepper(model, way.make, batch) for way in ways}
    plain = stepper(model, None, batch)
    for way in ways:  # a model seen for the first time is verified
        _block(steps[way.name], 2 * way.block)
    _block(plain, 2 * BLOCK)
    rounds = max(3, min(ROUNDS, int(SECONDS / BLOCK / _block(plain, BLOCK))))
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    with progress(rounds, "cost", " rounds") as bar:
        for _ in range(rounds):
            before = _block(plain, BLOCK)
            for way in ways:
                ratios[way.name].append(_block(steps[way.name], way.block) / before)
            bar.update()
    return {name: median(found) for name, found in ratios.items()}


def _block(step: Callable[[], None], count: int) -> float:
    """Time of a step, on average over so many; of this thread alone, so that other processes do not count."""
    begin = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - begin) / count
