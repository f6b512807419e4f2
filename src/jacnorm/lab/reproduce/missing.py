"""Which runs an experiment has, which are still to come, and which came to nothing."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import RunConfig
from ..results import Selection, has_diverged, validation_loss
from ..sweep.experiment import Experiment
from ..sweep.naming import names
from .choice import Choice

MOST_NAMED = 8


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
