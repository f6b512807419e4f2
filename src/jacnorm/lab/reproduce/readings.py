"""Which epoch does the paper report? The cells of table 1 by two readings, and a test over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..statistics import LEVEL, probability, welch
from ..sweep.experiment import Experiment
from ..wording import count, mean_sd, plain, signed, spread
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
    found = pd.DataFrame([row for group in groups for row in _cells(group)])
    if found.empty:
        return None
    joint = _joint(found)
    return Readings((_cell_table(found), _joint_table(joint)), _conclusion(found, joint))


def _cells(group: Sequence[Experiment]) -> Iterator[dict[str, Any]]:
    """A row for each cell and reading, with Welch's test: `errors` is the difference in standard errors."""
    table, every = group[0], [read_runs(experiment) for experiment in group]
    every.sort(key=_screened, reverse=True)
    for label, (paper, paper_sd) in table.paper.items():
        runs = next((runs for runs in every if _is_whole(runs, label)), None)
        if runs is None:
            continue
        mine, epochs = runs.networks[runs.networks["method"] == label], _screened(runs)
        for reading, quantity in READINGS.items():
            errors, p = welch(mine[quantity], paper, paper_sd)
            yield {
                "cell": f"{table.title.removeprefix('Table 1, ')}, {label}",
                "reading": reading,
                "paper": mean_sd(paper, paper_sd),
                "ours": spread(mine[quantity]),
                "difference": mine[quantity].mean() - paper,
                "errors": errors,
                "p": p,
                "rests on": f"{count(epochs, 'epoch')}, n = {len(mine)}",
                "full": epochs == runs.experiment.runs[0].epochs,
            }


def _screened(runs: Runs) -> int:
    return runs.experiment.screening_epochs or runs.experiment.runs[0].epochs


def _is_whole(runs: Runs, label: str) -> bool:
    """All settings of the method were looked at, and the best has two networks or more."""
    choices, trained = runs.choices, (runs.networks["method"] == label).sum()
    return label in choices.index and choices["compared"][label] == choices["settings"][label] and trained > 1


def _joint(found: pd.DataFrame) -> pd.DataFrame:
    """A row for each reading of all cells, and of those whose settings were chosen as the paper does."""
    from scipy import stats

    groups = {"all": found}
    if found["full"].nunique() > 1:
        groups["settings chosen after training in full"] = found[found["full"]]
    rows = [
        {
            "cells": which,
            "n": str(len(cells)),
            "reading": reading,
            "difference": cells["difference"].mean(),
            "errors": np.sqrt((cells["errors"] ** 2).mean()),
            "p": stats.combine_pvalues(cells["p"], method="fisher").pvalue,
        }
        for which, some in groups.items()
        for reading, cells in some.groupby("reading", sort=False)
    ]
    return pd.DataFrame(rows)


def _cell_table(found: pd.DataFrame) -> Table:
    of = found.set_index("cell")
    shown = of.assign(difference=of["difference"].map(signed), errors=[signed(e, 1) for e in of["errors"]])
    columns = []
    for reading, cells in shown.groupby("reading", sort=False):
        names = {"ours": reading, "errors": "in s.e."}
        columns.append(cells[["ours", "difference", "errors"]].rename(columns=names))
    ends = cells[["paper"]], cells[["rests on"]]  # the same by any reading
    return Table.of(
        "Test accuracy in percent, mean ± standard deviation, if the paper reports the last epoch of each "
        "network and if it reports the best; the difference to the paper's mean, also in standard errors "
        "(s.e., Welch). A cell rests on settings that were chosen with one seed after so many epochs, and on "
        "n networks.",
        pd.concat([ends[0], *columns, ends[1]], axis=1),
    )


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


def _conclusion(found: pd.DataFrame, joint: pd.DataFrame) -> str:
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
    by_it = found[found["reading"] == closer].set_index("cell")["errors"]
    worst = by_it.abs().idxmax()
    far = f"{worst} is furthest from the paper, by {signed(by_it[worst], 1)} standard errors"
    return f"{told} ({shown}). By the {closer}, {far}."
