"""The runs of an experiment as one frame: what is stored of them, what is chosen, and what is missing."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..results import Result, Results, has_diverged, select, validation_loss
from ..sweep.experiment import Experiment, names, setting

LATE = 10  # epochs
MOST_NAMED = 8
NUMBERS = (
    *("accuracy", "sigma", "seconds", "last", "late_accuracy"),
    *("lowest_loss_accuracy", "lowest_loss_epoch", "best_accuracy", "best_epoch"),
)
STAGE_ONE, FULL = "stage one", "full"  # a grid without screening is its own stage one


@dataclass(frozen=True)
class Runs:
    experiment: Experiment
    stored: Results
    frame: pd.DataFrame  # a row for each run that is asked for, in each stage
    choices: pd.DataFrame  # a row for each method with a run to choose by, one that did not diverge

    @cached_property
    def networks(self) -> pd.DataFrame:
        """Those of the chosen settings that are trained in full."""
        chosen = self.full[self.full["setting"].isin(self.choices["setting"])]
        return chosen[chosen["done"] & ~chosen["diverged"]]

    def by_seed(self, quantity: str) -> pd.DataFrame:
        """Of the chosen networks: a row a seed, a column a method."""
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
        """What is not there yet, in words; nothing when all is."""
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
        return (f"Still missing: {'; '.join(lacking)}.",) if lacking else ()

    @property
    def under_way(self) -> str:
        """How far the stage is that the sweep is in; nothing when all is there."""
        stages = [(self.first_stage, "runs")]
        if self.experiment.screening_epochs is not None:
            chosen = self.full["setting"].isin(self.choices["setting"])
            stages = [(self.first_stage, "screening runs"), (self.full[chosen], "runs in full")]
        parts = [(runs["done"].sum(), len(runs), what) for runs, what in stages]
        return next((f"{done} of {n} {what}" for done, n, what in parts if done < n), "")


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
    runs = Runs(experiment, stored, pd.DataFrame(rows), pd.DataFrame())
    return replace(runs, choices=_choices(runs))


def _measured(result: Result | None) -> dict[str, Any]:
    """The first accuracy is that of the test split. Others are of the validation split: in the last epoch,
    over the last ten, in the epoch of the lowest loss, and the highest. All are in percent. Seconds are those
    of an epoch: their median, since a machine may have slept.
    """
    nothing = dict.fromkeys(NUMBERS, math.nan)
    if result is None:
        return {"done": False, "diverged": False, "loss": math.nan, **nothing}
    if has_diverged(result):
        return {"done": True, "diverged": True, "loss": validation_loss(result), **nothing}
    accuracies = 100 * np.array(result["history"]["validation_accuracy"])
    lowest, highest = np.argmin(result["history"]["validation_loss"]), np.argmax(accuracies)
    return {
        "done": True,
        "diverged": False,
        "loss": validation_loss(result),
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


def _choices(runs: Runs) -> pd.DataFrame:
    """The setting with the lowest mean loss, of those that most seeds are there of."""
    first = runs.first_stage
    losses = first.groupby(["method", "setting"], sort=False)["loss"].agg(["mean", "count", "size"])
    found = {}
    for label, of in losses.groupby("method", sort=False):
        compared = of[(of["count"] == of["count"].max()) & (of["count"] > 0)].droplevel("method")
        ended = compared["mean"][np.isfinite(compared["mean"])].sort_values(kind="stable")
        if len(ended):
            best = ended.index[0]
            whole = compared["count"][best] == compared["size"][best]
            configs = runs.full["config"][runs.full["setting"] == best]
            found[label] = {
                "setting": best,
                "config": configs.iloc[0],  # with the first seed
                "seeds": len(configs),
                "loss": ended.iloc[0],
                "next_best": ended.iloc[1] if len(ended) > 1 else math.nan,
                "compared": len(compared) if whole else 0,
                "settings": len(of),
            }
    columns = ["setting", "config", "seeds", "loss", "next_best", "compared", "settings"]
    return pd.DataFrame.from_dict(found, orient="index", columns=columns)
