"""Which settings stand for each method, those with the lowest validation loss, and which runs are missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..config import RunConfig
from ..results import Result, Selection, has_diverged, validation_loss
from ..sweep.experiment import Experiment, setting
from ..sweep.naming import names

MOST_NAMED = 8


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


def diverged(experiment: Experiment, stored: Selection) -> tuple[str, ...]:
    """Such runs are results as well."""
    there = [run for run in experiment.all_runs if run.id in stored.results]
    found = [run for run in there if has_diverged(stored.results[run.id])]
    if not found:
        return ()
    called = names(experiment.all_runs)
    each = "; ".join(called[run.id] for run in found[:MOST_NAMED])
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    lost = {run.label for run in found} - {run.label for run in there if run not in found}
    nothing = f" Nothing else is there of {', '.join(sorted(lost))}, so nothing was chosen." if lost else ""
    return (f"Diverged, so never chosen and without an accuracy: {each}{more}.{nothing}",)


def missing(experiment: Experiment, stored: Selection, choices: Sequence[Choice]) -> tuple[str, ...]:
    """What is not there yet; empty when all is."""
    if not stored.results:
        return ("No results yet.",)
    lacking = []
    first = experiment.runs if experiment.screening_epochs is None else experiment.screening_runs()
    to_come = [run for run in first if run.id not in stored.results]
    if experiment.screening_epochs is not None and to_come:
        lacking.append(f"{len(to_come)} of {len(first)} screening runs, so choices are provisional")
    elif provisional := [c.label for c in choices if c.compared < c.settings]:
        lacking.append(f"settings of {', '.join(provisional)}, so their choices are provisional")
    chosen = {choice.label: choice for choice in choices}
    for label in experiment.labels:
        choice = chosen.get(label)
        if choice is None and any(run.label == label for run in to_come):
            lacking.append(f"all runs of {label}")
        elif choice is None:
            continue  # all diverged
        elif absent := choice.seeds - len(choice.runs) - len(choice.diverged):
            lacking.append(f"{absent} of {choice.seeds} seeds of {label}")
    return (f"Still missing: {'; '.join(lacking)}.",) if lacking else ()


def under_way(experiment: Experiment, stored: Selection) -> str:
    """How far the stage is that the sweep is in; nothing when all is there."""
    if experiment.screening_epochs is None:
        return _part(experiment.runs, stored, "runs")
    first = experiment.screening_runs()
    losses = {run.id: validation_loss(stored.results[run.id]) for run in first if run.id in stored.results}
    return _part(first, stored, "screening runs") or _part(
        experiment.chosen_runs(losses), stored, "runs in full"
    )


def _part(runs: Sequence[RunConfig], stored: Selection, what: str) -> str:
    done = sum(run.id in stored.results for run in runs)
    return "" if done == len(runs) else f"{done} of {len(runs)} {what}"
