"""Cost: the time of an optimizer step over that of a plain step of the same model, in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from torch import nn

from ..evaluate.common import progress
from .step import Batch, stepper
from .ways import BLOCK, Way

SECONDS = 50.0  # of all ways together
ROUNDS = 3, 15  # at least and at most


def costs(model: nn.Module, ways: Sequence[Way], batch: Batch) -> dict[str, float]:
    """Median over rounds in which every way has its turn, so that a busy machine slows all of them."""
    steps = {way.name: stepper(model, way.make, batch) for way in ways}
    plain = stepper(model, None, batch)
    least, most = ROUNDS
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    with progress((1 + most) * len(ways), "cost", " blocks of steps") as bar:
        for way in ways:  # a model seen for the first time is verified
            _block(steps[way.name], way.block)
            bar.update()
        _block(plain, BLOCK)
        begin = time.thread_time()
        for done in range(most):
            if done >= least and time.thread_time() - begin > SECONDS:
                break
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
