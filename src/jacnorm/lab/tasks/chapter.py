"""The chapter of an experiment with these tasks: interquartile means with intervals per method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..claims import decide
from ..reproduce.chapter import Chapter, Table
from ..reproduce.runs import still_missing, unfinished
from ..results import Result, Results, has_diverged, select
from ..settings import Settings, Titles
from ..statistics import Scores, interquartile_mean, interval
from ..sweep.experiment import Experiment, names
from ..wording import NOTHING, count, plain, signed

FEWEST = 3  # runs, for an interval


@dataclass(frozen=True)
class Difference:
    text: str
    sign: int | None = None  # of the interval; 0 if it has both signs, None without an interval


@dataclass(frozen=True)
class Trials:
    """The runs of an experiment, finished or not: one row per run, with its final numbers.

    Methods are compared over strata. Runs of different strata differ in settings that all methods have.
    """

    experiment: Experiment
    stored: Results

    @cached_property
    def frame(self) -> pd.DataFrame:
        shared = self.shared
        rows = []
        for run in self.experiment.runs:
            result = self.stored.records.get(run.id)
            stratum = ", ".join(f"{name.replace('_', ' ')} {getattr(run, name):g}" for name in shared)
            row = {"method": run.label, "seed": run.seed, "stratum": stratum, "id": run.id}
            rows.append({**row, **_measured(result, run.quantities)})
        return pd.DataFrame(rows)

    @property
    def shared(self) -> list[str]:
        """The settings that all methods have and that differ between runs."""
        runs: Iterable[Settings] = self.experiment.runs
        known = [set(run.relevant()) for run in runs]
        told = {"method", "seed", "weight"}
        return sorted(
            name
            for name in set.intersection(*known) - told
            if len({getattr(run, name) for run in self.experiment.runs}) > 1
        )

    @property
    def methods(self) -> tuple[str, ...]:
        return self.experiment.labels

    @property
    def done(self) -> pd.DataFrame:
        return self.frame[self.frame["done"] & ~self.frame["diverged"]]

    def quantity(self, name: str) -> pd.DataFrame:
        """One row per stratum and seed, one column per method."""
        wide = self.done.pivot(index=["stratum", "seed"], columns="method", values=name)
        return wide.reindex(columns=list(self.methods)).astype(float)

    def strata(self, method: str, name: str, stratum: str | None = None) -> list[Scores]:
        mine = self.done[self.done["method"] == method]
        if stratum is not None:
            mine = mine[mine["stratum"] == stratum]
        return [of[name].to_numpy(dtype=float) for _, of in mine.groupby("stratum")]

    def shown(self, method: str, name: str, digits: int, stratum: str | None = None) -> str:
        return _with_interval(self.strata(method, name, stratum), digits)

    def difference(self, method: str, name: str, digits: int) -> Difference:
        """The difference to the first method. Experiments begin with the method that does nothing."""
        return _difference(self.strata(method, name), self.strata(self.methods[0], name), digits)

    @property
    def notes(self) -> tuple[str, ...]:
        frame = self.frame
        to_come = int((~frame["done"]).sum())
        found = [*still_missing([f"{to_come} of {count(len(frame), 'run')}"] if to_come else [])]
        if len(lost := frame[frame["done"] & frame["diverged"]]):
            called = names(self.experiment.runs)
            each = "; ".join(called[name] for name in lost["id"])
            found.append(f"Left out of these numbers, because they diverged: {each}.")
        return tuple(found)


def trials(experiment: Experiment) -> Trials:
    return Trials(experiment, select(experiment.results, {run.id for run in experiment.runs}))


def chapter(experiment: Experiment) -> Chapter:
    """The chapter of an experiment. Nothing is trained here."""
    found = trials(experiment)
    titles: Titles = experiment.runs[0].quantities
    quantities = {name: found.quantity(name) for name in titles}
    there = len(found.done) > 0
    units = {name: title for name, (title, _) in titles.items()}
    done, runs = int(found.frame["done"].sum()), len(found.frame)
    return Chapter(
        name=experiment.name,
        title=experiment.title,
        notes=(*found.notes,) if there else ("No results yet.",),
        tables=tuple(_tables(found, titles)) if there else (),
        verdicts=decide(experiment.claims, quantities, units) if there else (),
        short=tuple(_short(found, titles)) if there else (),
        quantities=quantities,
        warnings=found.stored.warnings,
        under_way=unfinished((done, runs, "runs")),
        curves=_curves(found),
        results=tuple(found.stored.records.values()),
    )


def _tables(found: Trials, titles: Titles) -> Iterable[Table]:
    """The tables. Quantities that are measured in noise have their own tables."""
    for in_noise in (False, True):
        some = {name: one for name, one in titles.items() if ("_in_noise_" in name) is in_noise}
        if some:
            yield _middles(found, some)
            yield _differences(found, some)
    if found.shared:
        yield _by_stratum(found, titles)


def _middles(found: Trials, titles: Titles) -> Table:
    rows = []
    for method in found.methods:
        n = (found.done["method"] == method).sum()
        rows.append((method, str(n), *(found.shown(method, q, digits) for q, (_, digits) in titles.items())))
    settings = f"{found.frame['stratum'].nunique()} settings ({', '.join(found.shared)})"
    over = f" over {settings}" if found.shared else ""
    return Table(
        caption=f"Interquartile means of n runs{over}, with 95 % intervals by a stratified bootstrap.",
        header=("method", "n", *(title for title, _ in titles.values())),
        rows=tuple(rows),
    )


def _differences(found: Trials, titles: Titles) -> Table:
    base, *others = found.methods
    rows = []
    for method in others:
        cells = (found.difference(method, name, digits).text for name, (_, digits) in titles.items())
        rows.append((f"{method} − {base}", *cells))
    return Table(
        caption=f"Differences of interquartile means to “{base}”, with 95 % intervals by the same bootstrap.",
        header=("", *(title for title, _ in titles.values())),
        rows=tuple(rows),
    )


def _by_stratum(found: Trials, titles: Titles) -> Table:
    name = found.experiment.runs[0].headline[0]
    title, digits = titles[name]
    strata = list(dict.fromkeys(found.frame["stratum"]))
    return Table(
        caption=f"The {title}, setting by setting: interquartile means with 95 % intervals.",
        header=("", *found.methods),
        rows=tuple(
            (stratum, *(found.shown(method, name, digits, stratum) for method in found.methods))
            for stratum in strata
        ),
    )


def _with_interval(strata: list[Scores], digits: int) -> str:
    scores = np.concatenate(strata) if strata else np.array([])
    if not len(scores):
        return NOTHING
    middle = plain(interquartile_mean(scores), digits)
    if len(scores) < FEWEST:
        return middle
    low, high = interval(strata)
    return f"{middle} [{plain(low, digits)}, {plain(high, digits)}]"


def _difference(ours: list[Scores], theirs: list[Scores], digits: int) -> Difference:
    if not ours or not theirs:
        return Difference(NOTHING)
    a, b = np.concatenate(ours), np.concatenate(theirs)
    middle = signed(interquartile_mean(a) - interquartile_mean(b), digits)
    if min(len(a), len(b)) < FEWEST:
        return Difference(middle)
    low, high = interval(ours, theirs)
    return Difference(f"{middle} [{signed(low, digits)}, {signed(high, digits)}]", (low > 0) - (high < 0))


def _short(found: Trials, titles: Titles) -> Iterable[str]:
    """For the headline quantities: which methods are above or below the first, or not distinguishable."""
    base, *others = found.methods
    for name in found.experiment.runs[0].headline:
        title, digits = titles[name]
        against = {method: found.difference(method, name, digits) for method in others}
        parts = [f"“{base}” has {found.shown(base, name, digits)}"]
        for sign, words in ((1, "above it"), (-1, "below it"), (0, "cannot be told from it")):
            of = [_named(method, one) for method, one in against.items() if one.sign == sign]
            parts += [f"{words}: {', '.join(of)}"] if of else []
        yield f"{title[0].upper()}{title[1:]}: {'; '.join(parts)}."


def _named(method: str, difference: Difference) -> str:
    return f"{method} ({difference.text})" if difference.sign else method


def _measured(result: Result | None, quantities: Mapping[str, Any]) -> dict[str, Any]:
    nothing = dict.fromkeys(quantities, math.nan)
    if result is None or has_diverged(result):
        return {"done": result is not None, "diverged": result is not None, **nothing}
    history = {name: float(np.median(of)) for name, of in result["history"].items()}
    measured = {name: result["test"].get(name, history.get(name, math.nan)) for name in quantities}
    return {"done": True, "diverged": False, **measured}


def _curves(found: Trials) -> pd.DataFrame | None:
    """The criterion after each epoch: one row per run and epoch."""
    rows = []
    for run in found.experiment.runs:
        result = found.stored.records.get(run.id)
        if result is not None:
            values = result["history"].get(run.criterion[0], [])
            rows += [{"method": run.label, "epoch": i, "value": v} for i, v in enumerate(values, 1)]
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    frame["method"] = pd.Categorical(frame["method"], categories=list(found.methods))
    frame.attrs["quantity"] = found.experiment.runs[0].criterion[0]
    return frame
