"""Which settings stand for each method: those with the lowest validation loss, as far as runs are there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..config import RunConfig
from ..results import Result, has_diverged, validation_loss
from ..sweep.experiment import Experiment, setting


@dataclass(frozen=True)
class Choice:
    """The settings chosen for a method, and their runs in full."""

    label: str
    setting: RunConfig  # with the first seed
    loss: float  # what it was chosen by
    next_best: float | None  # the same of the setting that comes after it, if one did not diverge
    runs: dict[int, Result]  # seed -> result
    diverged: tuple[int, ...]  # seeds
    seeds: int  # asked for
    compared: int  # settings that the choice was made among ...
    settings: int  # ... of so many


def choose(experiment: Experiment, results: dict[str, Result]) -> tuple[Choice, ...]:
    """A choice for every method that has a run to choose by, one that did not diverge."""
    found = (_choice(experiment, label, results) for label in experiment.labels)
    return tuple(choice for choice in found if choice is not None)


def _choice(experiment: Experiment, label: str, results: dict[str, Result]) -> Choice | None:
    settings: dict[str, list[RunConfig]] = {}  # the runs of each, one a seed
    for run in experiment.runs:
        if run.label == label:
            settings.setdefault(setting(run), []).append(run)
    losses = {key: _losses(experiment, runs, results) for key, runs in settings.items()}
    most = max(len(found) for found in losses.values())
    compared = {key: sum(found) / most for key, found in losses.items() if most and len(found) == most}
    best = min(compared, key=lambda key: compared[key], default=None)
    if best is None or math.isinf(compared[best]):
        return None
    ended = {run.seed: results[run.id] for run in settings[best] if run.id in results}
    full = {seed: result for seed, result in ended.items() if not has_diverged(result)}
    asked = len(settings[best]) if experiment.screening_epochs is None else 1
    seen = len(compared) if most == asked else 0
    return Choice(
        label=label,
        setting=settings[best][0],
        loss=compared[best],
        next_best=min((x for key, x in compared.items() if key != best and math.isfinite(x)), default=None),
        runs=full,
        diverged=tuple(seed for seed in ended if seed not in full),
        seeds=len(settings[best]),
        compared=seen,
        settings=len(settings),
    )


def _losses(experiment: Experiment, runs: list[RunConfig], results: dict[str, Result]) -> list[float]:
    """What a setting is judged by: the one run of stage one, or all seeds of it."""
    if experiment.screening_epochs is not None:
        first = min(runs, key=lambda run: run.seed)
        runs = [replace(first, epochs=experiment.screening_epochs)]
    return [validation_loss(results[run.id]) for run in runs if run.id in results]
