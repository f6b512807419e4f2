"""The cost of a training step with each penalty, figure 5 (left)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from ..bench.timing import Batch, stepper
from ..bench.ways import BOUND, DEFAULT, EXACT, FROBENIUS, PAPERS_EXACT, RANDOM, WAYS
from ..data import Split
from ..errors import EvaluationError
from ..nets import Normalized
from ..progress import progress
from .common import Result, check_increasing, prepare

BATCH_SIZES = (16, 32, 64, 128, 256)
REPEATS = 15
PENALTIES = {  # method's name in tables -> its name in the benchmark
    "spectral-bound": BOUND,
    "frobenius": FROBENIUS,
    "spectral": RANDOM,  # the paper's
    "spectral-warm": DEFAULT,
    "analytic": EXACT.name,
    "analytic-svd": PAPERS_EXACT.name,  # the paper's
}
KINDS = ("forward", "plain", *PENALTIES)


@dataclass(frozen=True)
class TimesResult(Result):
    """Median seconds of a forward pass and of optimizer steps, for each batch size.

    `ratio` is the time in units of the plain step, the median over rounds. In each round every kind runs
    once, one after the other, so other work of the machine slows all of them. Compare ratios, not seconds.
    """

    batch_sizes: tuple[int, ...]
    seconds: dict[str, tuple[float, ...]]
    ratio: dict[str, tuple[float, ...]]
    repeats: int


def step_times(
    model: Normalized, split: Split, *, batch_sizes: tuple[int, ...] = BATCH_SIZES, repeats: int = REPEATS
) -> TimesResult:
    """Measure the time per batch. The network is copied, so it does not change."""
    prepare(model, split, pixels=False)
    check_increasing("batch_sizes", batch_sizes, least=1)
    if batch_sizes[-1] > len(split) or repeats < 1:
        raise EvaluationError(
            f"batches of {batch_sizes[-1]} {repeats} times over need as many images, and 1 repeat or more; "
            f"there are {len(split)} images"
        )
    rounds = []
    with progress(len(batch_sizes) * repeats, "time per batch", " rounds") as bar:
        for size in batch_sizes:
            rounds.append(_rounds(model, split.images[:size], split.labels[:size], repeats, bar.update))
    seconds = {k: tuple(median(r[k] for r in of_size) for of_size in rounds) for k in KINDS}
    ratio = {k: tuple(median(r[k] / r["plain"] for r in of_size) for of_size in rounds) for k in KINDS}
    return TimesResult(batch_sizes, seconds, ratio, repeats)


def _rounds(
    model: Normalized, images: Tensor, labels: Tensor, repeats: int, tick: Callable[[], object]
) -> list[dict[str, float]]:
    body = copy.deepcopy(model.body).train()
    batch = (model.normalize(images), labels, torch.arange(len(images)))
    steps = {kind: _step(kind, body, batch) for kind in KINDS}
    for step in steps.values():  # a warm-up: the new model is verified, and threads start
        step()
    found = []
    for _ in range(repeats):
        found.append({kind: _timed(step, images.device) for kind, step in steps.items()})
        tick()
    return found


def _step(kind: str, body: nn.Module, batch: Batch) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            body(batch[0])

    if kind == "forward":
        return forward
    way = {way.name: way for way in (*WAYS, PAPERS_EXACT)}.get(PENALTIES.get(kind, ""))
    return stepper(body, None if way is None else way.make, batch)


def _timed(step: Callable[[], None], device: torch.device) -> float:
    _wait_for(device)
    begin = time.perf_counter()
    step()
    _wait_for(device)
    return time.perf_counter() - begin


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
