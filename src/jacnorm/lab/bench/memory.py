"""Peak memory of an optimizer step: the tensors that are alive, counted after each call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ...pytorch.live import Live
from ..progress import progress
from .timing import Batch, stepper
from .ways import Penalize, Way

STEPS = 2


def growth(model: nn.Module, ways: Sequence[Way], batch: Batch) -> dict[str, float]:
    """Peak MB of tensors that are made in the first two steps; "plain" is the step without penalty.

    J and the loss of the first step live on into the second. The first step verifies the model. The number
    is exact and the same in every run. It leaves out memory that a kernel needs only while it runs.
    """
    makes = {"plain": None} | {way.name: way.make for way in ways}
    found = {}
    with progress(len(makes), "memory", " ways") as bar:
        for name, make in makes.items():
            found[name] = growth_of(model, make, batch)
            bar.update()
    return found


def growth_of(model: nn.Module, make: Callable[[nn.Module], Penalize] | None, batch: Batch) -> float:
    step = stepper(model, make, batch)
    gc.collect()
    before = [t for t in gc.get_objects() if issubclass(type(t), Tensor)]  # the weights among them
    with Live(before) as live:
        for _ in range(STEPS):
            step()
    return live.most / 1e6
