"""A whole experiment: all its runs, or its two stages."""

from __future__ import annotations

import sys

from ..config import RunConfig
from ..wording import count
from .experiment import Experiment
from .pool import Pool
from .status import LiveView, Status, status
from .store import Store


def sweep(experiment: Experiment, pool: Pool) -> Status:
    """Train what is not trained yet; what became of the runs."""
    if experiment.screening_epochs is None:
        return _stage(experiment.title, experiment.runs, pool)
    if coming := to_come(experiment, pool.store):
        print(f"{experiment.title}, stage 1 of 2; {coming}", file=sys.stderr, flush=True)
    first = _stage(f"{experiment.title}, screening", experiment.screening_runs(), pool)
    losses = {config.id: pool.store.validation_loss(config) for config in first.done}
    if not (chosen := experiment.chosen_runs(losses)):
        print("No setting is left to train in full.", file=sys.stderr)
        return first
    second = _stage(f"{experiment.title}, chosen", chosen, pool)
    return Status(
        first.done + second.done, (), first.failed + second.failed, (), first.diverged + second.diverged
    )


def known_runs(experiment: Experiment, store: Store) -> tuple[RunConfig, ...]:
    """The runs that are to be made as far as that can be told now."""
    if experiment.screening_epochs is None:
        return experiment.runs
    first = experiment.screening_runs()
    if not _is_over(first, store):
        return first
    losses = {config.id: store.validation_loss(config) for config in first if store.is_done(config)}
    return first + experiment.chosen_runs(losses)


def to_come(experiment: Experiment, store: Store) -> str:
    """What follows the runs that are known now, if anything does."""
    if experiment.screening_epochs is None or _is_over(experiment.screening_runs(), store):
        return ""
    second = experiment.chosen_runs({run.id: 0.0 for run in experiment.screening_runs()})  # if none diverges
    runs, epochs = count(len(second), "run"), count(experiment.runs[0].epochs, "epoch")
    return f"a second stage follows: the best of each method in full, {runs} of {epochs}"


def forget_failures(experiment: Experiment, store: Store) -> None:
    """What was given up is tried again by the next sweep."""
    for config in known_runs(experiment, store):
        store.forget_failures(config)


def _is_over(stage: tuple[RunConfig, ...], store: Store) -> bool:
    return all(store.is_done(config) or store.has_failed(config) for config in stage)


def _stage(title: str, runs: tuple[RunConfig, ...], pool: Pool) -> Status:
    for config in runs:
        pool.store.adopt(config)
    with LiveView(pool.store, runs, title) as view:
        pool.run_all(runs, view.watch)
        view.watch([])
    return status(pool.store, runs)
