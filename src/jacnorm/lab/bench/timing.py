"""Cost: the time of an optimizer step, divided by the time of a plain step of the same model, in one run."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..progress import progress
from .ways import BLOCK, Penalize, Way

Batch = tuple[Tensor, Tensor, Tensor]  # x, labels, index


def stepper(
    model: nn.Module, make: Callable[[nn.Module], Penalize] | None, batch: Batch
) -> Callable[[], None]:
    """One optimizer step on a copy of the model. The loss lives until the next step replaces it."""
    model = copy.deepcopy(model)
    x, labels, index = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.8)
    penalize = None if make is None else make(model)
    loss = None

    def step() -> None:
        nonlocal loss
        if penalize is None:
            loss = F.cross_entropy(model(x), labels)
        else:
            output, penalty = penalize(x, index)
            loss = F.cross_entropy(output, labels) + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


SECONDS = 50.0  # seconds for all ways together
ROUNDS = 3, 15  # rounds, at least and at most
# Blocks before the first round. A model is verified at its first, second, fourth, eighth … visit. After two
# blocks, one of three rounds has a verification, which does not affect the median. After one block, two of
# three rounds would have one.
UNTIMED = 2


def costs(model: nn.Module, ways: Sequence[Way], batch: Batch) -> dict[str, float]:
    """Median over rounds. Every way has its turn in each round, so a busy machine slows all of them. Each
    round begins with another way, because the first one after the plain steps finds nothing in the caches."""
    keep_memory()
    steps = {way.name: stepper(model, way.make, batch) for way in ways}
    plain = stepper(model, None, batch)
    least, most = ROUNDS
    ratios: dict[str, list[float]] = {name: [] for name in steps}
    with progress((UNTIMED + most) * len(ways), "cost", " blocks of steps") as bar:
        for way in [*ways] * UNTIMED:
            block(steps[way.name], way.block)
            bar.update()
        block(plain, BLOCK)
        begin = time.thread_time()
        for done in range(most):
            if done >= least and time.thread_time() - begin > SECONDS:
                break
            before = block(plain, BLOCK)
            for way in [*ways[done % len(ways) :], *ways[: done % len(ways)]]:
                ratios[way.name].append(block(steps[way.name], way.block) / before)
                bar.update()
    return {name: median(found) for name, found in ratios.items()}


def keep_memory() -> None:
    """Free a large block once. From then on, glibc keeps freed memory. Before that, it gives memory back to
    the system after a step, and the next step waits for new pages: 3.3 plain steps instead of 2.8 on a small
    transformer, and 3.7 instead of 2.7 by double backward. Larger networks free such blocks by themselves.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def block(step: Callable[[], None], count: int) -> float:
    """Mean time of so many steps. It is the time of this thread alone, so other processes do not count."""
    begin = time.thread_time()
    for _ in range(count):
        step()
    return (time.thread_time() - begin) / count
