"""What people say of all tables and figures together, in page.toml; and the commands that make them again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..claims import FAILS, HOLDS, OPEN
from ..config import read_toml
from ..reproduce.catalog import PAGE, QUICK_FOLDER, Item, quantities_in, with_numbers
from ..reproduce.readings import Readings, readings
from ..results import experiment_file
from ..sweep.experiment import Experiment, read_experiment

Deviation = tuple[str, str, str]  # what the paper has, what is here, why


class Bullet(NamedTuple):
    outcome: str
    text: str  # Markdown


def _page(folder: Path, part: str) -> Any:
    """A part of page.toml, if there is one."""
    page = folder / PAGE
    return (read_toml(page) if page.exists() else {}).get(part, {})


def bullets(
    folder: Path, outcomes: Mapping[str, str], results: Path | None
) -> tuple[list[Bullet], list[str]]:
    """Those whose claims have come out as they say; and warnings about the others."""
    page, found, warnings = folder / PAGE, [], []
    for bullet in _page(folder, "summary"):
        there = {outcomes.get(claim, "") for claim in bullet["claims"]}
        if there == {bullet["outcome"]}:
            numbers = lambda name: quantities_in(experiment_file(page, name), results)
            found.append(Bullet(bullet["outcome"], with_numbers(bullet["text"], page, numbers)))
        elif there <= {HOLDS, FAILS, OPEN}:
            others = f"{bullet['claims'][0]!r} and others"
            warnings.append(f"{page}: {others}: not all of them {bullet['outcome']}")
    return found, warnings


def by_readings(folder: Path, results: Path | None) -> Readings | None:
    """Of the tables that are named, each with the experiments whose settings were chosen otherwise."""
    groups = [
        [read_experiment(experiment_file(folder / PAGE, name), results) for name in (table, *others)]
        for table, others in _page(folder, "readings").items()
    ]
    return readings(groups)


def deviations(items: Sequence[Item], folder: Path) -> list[Deviation]:
    """Those that concern these tables and figures: from page.toml, and what the experiments tell."""
    if not items or not (folder / PAGE).exists():
        return []
    figures = {item.figure.figure for item in items if item.figure is not None}
    nets = {run.architecture[0] for item in items for run in item.table.runs}
    always, by_figure, by_net = [], [], []
    for one in _page(folder, "deviations"):
        if "figure" in one:
            told = (f"Figure {one['figure']}: {one['paper']}", one["here"], one["why"])
            by_figure += [told] if one["figure"] in figures else []
        if one.get("net") in nets:
            by_net.append((one["paper"], one["here"], one["why"]))
        if not {"figure", "net"} & set(one):
            always.append((one["paper"], one["here"], one["why"]))
    return [*_screening(items), *always, *by_figure, *by_net]


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
