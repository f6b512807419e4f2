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
    """Each group has a table of the paper's, and others in which its settings were chosen otherwise.

    A cell rests on the longest screening that is whole and whose networks are there. None without a cell.
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
    rows = []
    for which, cells in groups.items():
        for name in READINGS:
            p, errors = cells[f"{name}, p"], cells[f"{name}, errors"]
            rows.append(
                {
                    "cells": which,
                    "n": len(cells),
                    "reading": name,
                    "difference": cells[f"{name}, difference"].mean(),
                    "errors": np.sqrt((errors**2).mean()),
                    "p": stats.combine_pvalues(p, method="fisher").pvalue,
                }
            )
    return pd.DataFrame(rows)


def _cell_table(frame: pd.DataFrame) -> Table:
    rows = []
    for _, cell in frame.iterrows():
        ours = [
            text
            for name in READINGS
            for text in (
                mean_sd(cell[f"{name}, mean"], cell[f"{name}, sd"]),
                signed(cell[f"{name}, difference"]),
                signed(cell[f"{name}, errors"], 1),
            )
        ]
        rests = f"{count(cell['screened'], 'epoch')}, n = {cell['n']}"
        where = f"{cell['data']}, {cell['method']}"
        rows.append((where, mean_sd(cell["paper"], cell["paper_sd"]), *ours, rests))
    header = [text for name in READINGS for text in (name, "difference", "in s.e.")]
    return Table(
        "Test accuracy in percent, mean ± standard deviation, if the paper reports the last epoch of each "
        "network and if it reports the best; the difference to the paper's mean, also in standard errors "
        "(s.e., Welch). A cell rests on settings that were chosen with one seed after so many epochs, and on "
        "n networks.",
        ("cell", "paper", *header, "rests on"),
        tuple(rows),
    )


def _joint_table(joint: pd.DataFrame) -> Table:
    rows = []
    for _, row in joint.iterrows():
        numbers = signed(row["difference"]), plain(row["errors"], 1)
        p = probability(row["p"]).removeprefix("p = ").removeprefix("p ")
        rows.append((row["cells"], str(row["n"]), row["reading"], *numbers, p))
    return Table(
        "All cells together: the mean difference in points, its size in standard errors (root mean square; "
        "about 1 where a reading is right), and the probability of such differences by chance alone "
        "(Fisher's method on the cells' p-values). Cells of one data set share seeds, so it is a little too "
        "small.",
        ("cells", "n", "reading", "difference", "in s.e.", "p"),
        tuple(rows),
    )


def _conclusion(frame: pd.DataFrame, joint: pd.DataFrame) -> str:
    """By the cells that are chosen as the paper does, once there are any; with the one that fits worst."""
    of = joint[joint["cells"] == joint["cells"].iloc[-1]].set_index("reading")
    likely, closer = list(of.index[of["p"] >= 1 - LEVEL]), of["errors"].idxmin()
    if len(likely) == 1:
        told = f"The {likely[0]} fits the paper's numbers, the other reading does not"
    elif likely:
        told = "Both readings fit the paper's numbers"
    else:
        told = f"Neither reading fits the paper's numbers; the {closer} is closer"
    shown = "; ".join(f"{name}: {probability(row['p'])}" for name, row in of.iterrows())
    worst = frame.loc[frame[f"{closer}, errors"].abs().idxmax()]
    errors = signed(worst[f"{closer}, errors"], 1)
    cell = f"{worst['data']}, {worst['method']}"
    return (
        f"{told} ({shown}). By the {closer}, {cell} is furthest from the paper, by {errors} standard errors."
    )
