"""What is there of an experiment and what is missing: runs, the networks chosen, their measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..config import RunConfig
from ..results import Result, Results, has_diverged, select, short
from ..sweep.experiment import Experiment, names, setting
from ..wording import count
from .measurement import as_frame

if TYPE_CHECKING:
    from .figures import FigurePlan

LATE = 10  # epochs
MOST_NAMED = 8
NUMBERS = (
    *("accuracy", "sigma", "seconds", "last", "late_accuracy"),
    *("lowest_loss_accuracy", "lowest_loss_epoch", "best_accuracy", "best_epoch"),
)
CHOICE = ["setting", "config", "seeds", "loss", "next_best", "compared", "settings"]
STAGE_ONE, FULL = "stage one", "full"  # without screening, the grid itself is stage one


@dataclass(frozen=True)
class Runs:
    experiment: Experiment
    stored: Results
    frame: pd.DataFrame  # a row for each run of the experiment, in each stage

    @cached_property
    def choices(self) -> pd.DataFrame:
        """For each method the setting with the lowest mean loss, among those with the most seeds.

        Methods whose runs all diverged have none.
        """
        losses = self.first_stage.groupby(["method", "setting"], sort=False)["loss"]
        found = {}
        for label, of in losses.agg(["mean", "count", "size"]).groupby("method", sort=False):
            compared = of[(of["count"] == of["count"].max()) & (of["count"] > 0)].droplevel("method")
            ended = compared["mean"][np.isfinite(compared["mean"])].sort_values(kind="stable")
            if len(ended):
                best = ended.index[0]
                whole = compared["count"][best] == compared["size"][best]
                configs = self.full["config"][self.full["setting"] == best]
                found[label] = {
                    "setting": best,
                    "config": configs.iloc[0],  # with the first seed
                    "seeds": len(configs),
                    "loss": ended.iloc[0],
                    "next_best": ended.iloc[1] if len(ended) > 1 else math.nan,
                    "compared": len(compared) if whole else 0,
                    "settings": len(of),
                }
        return pd.DataFrame.from_dict(found, orient="index", columns=CHOICE)

    @cached_property
    def networks(self) -> pd.DataFrame:
        """The runs of the chosen settings that are trained in full."""
        chosen = self.full[self.full["setting"].isin(self.choices["setting"])]
        return chosen[chosen["done"] & ~chosen["diverged"]]

    def by_seed(self, quantity: str) -> pd.DataFrame:
        """A quantity of the chosen networks: a row for each seed, a column for each method."""
        wide = self.networks.pivot(index="seed", columns="method", values=quantity)
        return wide.reindex(columns=list(self.experiment.labels)).astype(float)

    @property
    def full(self) -> pd.DataFrame:
        return self.frame[self.frame["stage"] == FULL]

    @property
    def first_stage(self) -> pd.DataFrame:
        screened = self.experiment.screening_epochs is not None
        return self.frame[self.frame["stage"] == STAGE_ONE] if screened else self.full

    @property
    def diverged(self) -> tuple[str, ...]:
        """Such runs are results as well."""
        done = self.frame[self.frame["done"]]
        found = done[done["diverged"]]
        if found.empty:
            return ()
        called = names(self.experiment.all_runs)
        each = "; ".join(called[name] for name in found["id"][:MOST_NAMED])
        more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        lost = sorted(set(found["method"]) - set(done["method"][~done["diverged"]]))
        nothing = f" Nothing else is there of {', '.join(lost)}, so nothing was chosen." if lost else ""
        return (f"Diverged, so never chosen and without an accuracy: {each}{more}.{nothing}",)

    @property
    def missing(self) -> tuple[str, ...]:
        """In words; nothing when all runs are there."""
        if not self.stored.records:
            return ("No results yet.",)
        lacking, first, choices = [], self.first_stage, self.choices
        to_come = first[~first["done"]]
        provisional = choices.index[choices["compared"] < choices["settings"]]
        if self.experiment.screening_epochs is not None and len(to_come):
            lacking.append(f"{len(to_come)} of {len(first)} screening runs, so choices are provisional")
        elif len(provisional):
            lacking.append(f"settings of {', '.join(provisional)}, so their choices are provisional")
        for label in self.experiment.labels:
            if label in choices.index:
                mine = self.full[self.full["setting"] == choices["setting"][label]]
                if absent := (~mine["done"]).sum():
                    lacking.append(f"{absent} of {len(mine)} seeds of {label}")
            elif label in set(to_come["method"]):  # else all diverged
                lacking.append(f"all runs of {label}")
        return still_missing(lacking)

    @property
    def under_way(self) -> str:
        first = self.first_stage["done"]
        if self.experiment.screening_epochs is None:
            return unfinished((first.sum(), len(first), "runs"))
        chosen = self.full["done"][self.full["setting"].isin(self.choices["setting"])]
        return unfinished(
            (first.sum(), len(first), "screening runs"), (chosen.sum(), len(chosen), "runs in full")
        )


def unfinished(*stages: tuple[int, int, str]) -> str:
    """How far the stage is that is under way; nothing when all are done.

    >>> unfinished((3, 3, "screening runs"), (1, 5, "runs in full"))
    '1 of 5 runs in full'
    """
    return next((f"{done} of {n} {what}" for done, n, what in stages if done < n), "")


def still_missing(parts: Iterable[str]) -> tuple[str, ...]:
    """
    >>> still_missing(["2 of 3 runs"]), still_missing([])
    (('Still missing: 2 of 3 runs.',), ())
    """
    told = "; ".join(parts)
    return (f"Still missing: {told}.",) if told else ()


def read_runs(experiment: Experiment) -> Runs:
    stored = select(experiment.results, {run.id for run in experiment.all_runs})
    first = experiment.screening_runs() if experiment.screening_epochs is not None else ()
    stages = [(STAGE_ONE, run) for run in first] + [(FULL, run) for run in experiment.runs]
    length = experiment.runs[0].epochs
    rows = []
    for stage, run in stages:
        of = setting(replace(run, epochs=length) if stage == STAGE_ONE else run)
        row = {**asdict(run), "method": run.label, "id": run.id, "config": run, "stage": stage, "setting": of}
        rows.append({**row, **_measured(stored.records.get(run.id))})
    return Runs(experiment, stored, pd.DataFrame(rows))


def _measured(result: Result | None) -> dict[str, Any]:
    """`accuracy` is on the test split. The other accuracies are on the validation split: in the last epoch,
    the mean of the last ten, in the epoch of the lowest loss, and the highest. All are in percent. `seconds`
    is the median over epochs, since a machine may have slept.
    """
    nothing = dict.fromkeys(("loss", *NUMBERS), math.nan)
    if result is None:
        return {"done": False, "diverged": False, **nothing}
    if has_diverged(result):
        return {"done": True, "diverged": True, **nothing, "loss": math.inf}
    accuracies = 100 * np.array(result["history"]["validation_accuracy"])
    lowest, highest = np.argmin(result["history"]["validation_loss"]), np.argmax(accuracies)
    return {
        "done": True,
        "diverged": False,
        "loss": result["history"]["validation_loss"][-1],
        "accuracy": 100 * result["test"]["accuracy"],
        "sigma": result["test"]["sigma"],
        "seconds": np.median(result["history"].get("seconds", math.nan)),
        "last": accuracies[-1],
        "late_accuracy": accuracies[-LATE:].mean(),
        "lowest_loss_accuracy": accuracies[lowest],
        "lowest_loss_epoch": 1 + lowest,
        "best_accuracy": accuracies[highest],
        "best_epoch": 1 + highest,
    }


@dataclass(frozen=True)
class Network:
    label: str
    config: RunConfig
    rivals: tuple[RunConfig, ...]  # of the other methods, with the same seed


def networks(runs: Runs, methods: Sequence[str] | None = None) -> tuple[Network, ...]:
    """All networks chosen in a table that have been trained, or those of some methods."""
    labels = list(runs.choices.index)
    trained = sorted(runs.networks["config"], key=lambda config: labels.index(config.label))
    wanted = [config for config in trained if methods is None or config.label in methods]
    rivals = {config.id: [o for o in trained if o.seed == config.seed and o != config] for config in wanted}
    return tuple(Network(config.label, config, tuple(rivals[config.id])) for config in wanted)


@dataclass(frozen=True)
class Subjects:
    """The networks of a figure, and what is stored of them."""

    plan: FigurePlan
    runs: Runs  # of the table that the networks are from
    networks: tuple[Network, ...]
    stored: Results

    def record(self, network: Network) -> dict[str, Any]:
        return self.stored.records.get(network.config.id, {})

    def lacking(self, network: Network, record: Result | None = None) -> list[str]:
        """The kinds that its record, or another one, does not have with these settings."""
        done = (self.record(network) if record is None else record).get("settings", {})
        kinds = self.plan.measurement.kinds(network)
        return [kind for kind, settings in kinds.items() if done.get(kind) != short(settings)]

    @cached_property
    def measured(self) -> list[Network]:
        return [network for network in self.networks if not self.lacking(network)]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each network that is measured whole."""
        found: dict[str, list[Result]] = {label: [] for label in self.runs.experiment.labels}
        for network in self.measured:
            found[network.label].append(self.record(network))
        return as_frame(found)

    @property
    def missing(self) -> tuple[str, ...]:
        if not self.networks:
            return (f"No networks yet: {self.runs.experiment.title} has none that is trained in full.",)
        asked = len(self.networks)
        to_come = asked - len(self.measured)
        return still_missing([f"{to_come} of {asked} networks"] if to_come else [])

    @property
    def under_way(self) -> str:
        return unfinished((len(self.measured), len(self.networks), "networks"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """About files that cannot be read, and about records with settings that are no longer wanted."""
        done = {n.config.id: self.record(n).get("settings", {}) for n in self.networks}
        ids = [n.config.id for n in self.networks if set(self.lacking(n)) & set(done[n.config.id])]
        if not ids:
            return self.stored.warnings
        records = f"{count(len(ids), 'record')} measured with other settings"
        return (*self.stored.warnings, f"{self.plan.name}: {records}: skipped (first {ids[0]})")


def subjects(plan: FigurePlan, table: Experiment) -> Subjects:
    runs = read_runs(table)
    found = networks(runs, plan.measurement.methods)
    return Subjects(plan, runs, found, select(plan.results, {n.config.id for n in found}))
