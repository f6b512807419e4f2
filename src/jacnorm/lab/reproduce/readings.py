"""Which epoch does the paper report? The cells of table 1 by two readings, and a test over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..statistics import LEVEL, probability, welch
from ..sweep.experiment import Experiment
from ..wording import count, mean_sd, plain, signed
from .chapter import Table
from .runs import Runs, read_runs

READINGS = {"last epoch": "accuracy", "best epoch": "best_accuracy"}


@dataclass(frozen=True)
class Readings:
    tables: tuple[Table, ...]  # cell by cell, and all of them together
    conclusion: str


def readings(groups: Sequence[Sequence[Experiment]]) -> Readings | None:
    """Each group is a table of the paper, and experiments that chose its settings in another way.

    A cell rests on the longest screening that is complete and has networks. None if there is no cell.
    """
    found = [cell for group in groups for cell in _cells(group)]
    if not found:
        return None
    frame = pd.DataFrame(found)
    joint = _joint(frame)
    return Readings((_cell_table(frame), _joint_table(joint)), _conclusion(frame, joint))


def _cells(group: Sequence[Experiment]) -> list[dict[str, object]]:
    table, every = group[0], [read_runs(experiment) for experiment in group]
    every.sort(key=_screened, reverse=True)
    name = table.title.removeprefix("Table 1, ")
    cells = []
    for label, paper in table.paper.items():
        runs = next((runs for runs in every if _is_whole(runs, label)), None)
        if runs is not None:
            cells.append({"data": name, "method": label, **_compared(runs, label, *paper)})
    return cells


def _screened(runs: Runs) -> int:
    return runs.experiment.screening_epochs or runs.experiment.runs[0].epochs


def _is_whole(runs: Runs, label: str) -> bool:
    """All settings of the method were looked at, and the best has two networks or more."""
    choices, trained = runs.choices, (runs.networks["method"] == label).sum()
    return label in choices.index and choices["compared"][label] == choices["settings"][label] and trained > 1


def _compared(runs: Runs, label: str, paper: float, paper_sd: float) -> dict[str, object]:
    """With Welch's test of each reading: `errors` is the difference in standard errors."""
    mine = runs.networks[runs.networks["method"] == label]
    found: dict[str, object] = {"paper": paper, "paper_sd": paper_sd, "n": len(mine)}
    found |= {"screened": _screened(runs), "full": _screened(runs) == runs.experiment.runs[0].epochs}
    for name, quantity in READINGS.items():
        mean, (errors, p) = mine[quantity].mean(), welch(mine[quantity], paper, paper_sd)
        parts = {
            "mean": mean,
            "sd": mine[quantity].std(),
            "difference": mean - paper,
            "errors": errors,
            "p": p,
        }
        found |= {f"{name}, {part}": value for part, value in parts.items()}
    return found


def _joint(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for each reading of all cells, and of those whose settings were chosen as the paper does."""
    from scipy import stats

    groups = {"all": frame}
    if 0 < frame["full"].sum() < len(frame):
        groups["settings chosen after training in full"] = frame[frame["full"]]
    rows = [
        {
            "cells": which,
            "n": str(len(cells)),
            "reading": name,
            "difference": cells[f"{name}, difference"].mean(),
            "errors": np.sqrt((cells[f"{name}, errors"] ** 2).mean()),
            "p": stats.combine_pvalues(cells[f"{name}, p"], method="fisher").pvalue,
        }
        for which, cells in groups.items()
        for name in READINGS
    ]
    return pd.DataFrame(rows)


def _cell_table(frame: pd.DataFrame) -> Table:
    parts = [frame[["paper", "paper_sd"]].apply(lambda row: mean_sd(*row), axis=1).rename("paper")]
    for name in READINGS:
        of = frame[[f"{name}, mean", f"{name}, sd"]]
        parts.append(of.apply(lambda row: mean_sd(*row), axis=1).rename(name))
        parts.append(frame[f"{name}, difference"].map(signed).rename("difference"))
        parts.append(frame[f"{name}, errors"].map(lambda errors: signed(errors, 1)).rename("in s.e."))
    rests = [
        f"{count(epochs, 'epoch')}, n = {n}" for epochs, n in zip(frame["screened"], frame["n"], strict=True)
    ]
    cells = pd.concat([*parts, pd.Series(rests, frame.index, name="rests on")], axis=1)
    return Table.of(
        "Test accuracy in percent, mean ± standard deviation, if the paper reports the last epoch of each "
        "network and if it reports the best; the difference to the paper's mean, also in standard errors "
        "(s.e., Welch). A cell rests on settings that were chosen with one seed after so many epochs, and on "
        "n networks.",
        cells.set_index(_names(frame)),
    )


def _names(frame: pd.DataFrame) -> pd.Series:
    return (frame["data"] + ", " + frame["method"]).rename("cell")


def _joint_table(joint: pd.DataFrame) -> Table:
    cells = joint[["n", "reading"]].assign(difference=joint["difference"].map(signed))
    cells["in s.e."] = joint["errors"].map(lambda errors: plain(errors, 1))
    cells["p"] = joint["p"].map(probability).str.removeprefix("p = ").str.removeprefix("p ")
    return Table.of(
        "All cells together: the mean difference in points, its size in standard errors (root mean square; "
        "about 1 where a reading is right), and the probability of such differences by chance alone "
        "(Fisher's method on the cells' p-values). Cells of one data set share seeds, so it is a little too "
        "small.",
        cells.set_index(joint["cells"]),
    )


def _conclusion(frame: pd.DataFrame, joint: pd.DataFrame) -> str:
    """By the cells whose settings are chosen as in the paper, if there are any; with the worst cell."""
    of = joint[joint["cells"] == joint["cells"].iloc[-1]].set_index("reading")
    likely, closer = list(of.index[of["p"] >= 1 - LEVEL]), of["errors"].idxmin()
    if len(likely) == 1:
        told = f"The {likely[0]} fits the paper's numbers, the other reading does not"
    elif likely:
        told = "Both readings fit the paper's numbers"
    else:
        told = f"Neither reading fits the paper's numbers; the {closer} is closer"
    shown = "; ".join(f"{name}: {probability(row['p'])}" for name, row in of.iterrows())
    worst = frame[f"{closer}, errors"].abs().idxmax()
    cell, errors = _names(frame)[worst], signed(frame[f"{closer}, errors"][worst], 1)
    return (
        f"{told} ({shown}). By the {closer}, {cell} is furthest from the paper, by {errors} standard errors."
    )
