"""Where a page comes from: what deviates from the paper, and the commands that make it again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..config import read_toml
from ..reproduce.catalog import PAGE, QUICK_FOLDER, Item
from ..sweep.experiment import Experiment

Deviation = tuple[str, str, str]  # what the paper has, what is here, why


def deviations(items: Sequence[Item], folder: Path) -> list[Deviation]:
    """Those that concern these tables and figures: from page.toml, and what the experiments tell."""
    page = folder / PAGE
    if not items or not page.exists():
        return []
    told = read_toml(page).get("deviations", [])
    figures = {item.figure.figure for item in items if item.figure is not None}
    nets = {run.architecture[0] for item in items for run in item.table.runs}
    always = [one for one in told if not {"figure", "net"} & set(one)]
    by_figure = [
        {**one, "paper": f"Figure {one['figure']}: {one['paper']}"}
        for one in told
        if one.get("figure") in figures
    ]
    by_net = [one for one in told if one.get("net") in nets]
    found = [(one["paper"], one["here"], one["why"]) for one in (*always, *by_figure, *by_net)]
    return [*_screening(items), *found]


def _screening(items: Sequence[Item]) -> list[Deviation]:
    tables = {item.table.title: item.table for item in items if item.table.screening_epochs is not None}
    if not tables:
        return []
    names = [f"{title}: {_work(table):.0%}".replace("%", " %") for title, table in tables.items()]
    return [
        (
            "Every setting of the grid in full, with five seeds",
            "Two-stage screening: all settings briefly with one seed, the best of each method in full "
            f"({'; '.join(names)} of the work)",
            "To be done in time. It ranks settings by their loss after a few epochs with one seed, where the "
            "next best is often within chance, and some overfit later: the tables of settings show both. The "
            "whole grid's choice may be another.",
        )
    ]


def _work(table: Experiment) -> float:
    """Epochs of both stages, as a part of those of the whole grid."""
    first = table.screening_runs()
    second = table.chosen_runs({run.id: 0.0 for run in first})  # as many, whichever are chosen
    return sum(run.epochs for run in (*first, *second)) / sum(run.epochs for run in table.runs)


def commands(present: Sequence[Item], results: Path | None) -> tuple[str, ...]:
    where = "" if results is None else f" --results {results}"
    shipped = [item for item in present if item.is_papers or item.is_quick]
    own = [item for item in present if item not in shipped]
    figures = [item for item in own if item.figure is not None]
    drawn = {item.table_file for item in figures}  # reproduce trains these
    tables = [item.file for item in own if item.figure is None and item.file not in drawn]
    files = "" if shipped else "".join(f" {item.file}" for item in own)
    return (
        *dict.fromkeys(_reproduce(item, results, where) for item in shipped),
        *(f"jacnorm sweep {file}{where}" for file in tables),
        *(f"jacnorm reproduce {item.file}{where}" for item in figures),
        f"jacnorm report{files}{where}",
    )


def _reproduce(item: Item, results: Path | None, where: str) -> str:
    quick = item.is_quick and results == QUICK_FOLDER
    which = "--quick" if quick else f"--data {item.data}{where}"
    protocol = item.table.runs[0].protocol
    return f"jacnorm reproduce all {which}" + (f" --protocol {protocol}" if protocol != "paper" else "")
