"""The first screen: table 1 beside the paper's, and what holds, in short sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import read_toml
from ..reproduce.catalog import PAGE, Item
from ..reproduce.chapter import FAILS, HOLDS, OPEN, Chapter, Table
from ..reproduce.chapters import quantities_in
from ..reproduce.numbers import NOTHING, mean_sd, signed
from ..reproduce.remarks import with_numbers
from ..reproduce.statistics import PAPER_RUNS, Summary
from ..results import experiment_file

Told = Sequence[tuple[Item, Chapter]]


@dataclass(frozen=True)
class Bullet:
    outcome: str
    text: str  # Markdown


def overview(told: Told) -> Table | None:
    """Every table 1 that there is, a row a method."""
    tables = [(item, s) for item, s in told if item.is_papers and item.figure is None and s.accuracy]
    if not tables:
        return None
    header = ["method"]
    for item, _ in tables:
        name = item.table.title.removeprefix("Table 1, ")
        header += [f"{name}: paper", "ours", "difference"]
    labels = list(dict.fromkeys(label for item, _ in tables for label in item.table.labels))
    rows = [(label, *(cell for _, s in tables for cell in _cells(s, label))) for label in labels]
    caption = "Test accuracy in percent, mean ± standard deviation over five networks."
    return Table(caption, tuple(header), tuple(rows))


def _cells(section: Chapter, label: str) -> tuple[str, str, str]:
    assert section.accuracy is not None
    ours, paper = (points.get(label) for points in section.accuracy)
    shown = [mean_sd(Summary(PAPER_RUNS, *point)) if point else NOTHING for point in (paper, ours)]
    return shown[0], shown[1], signed(ours[0] - paper[0]) if ours and paper else NOTHING


def bullets(folder: Path, told: Told, results: Path | None) -> tuple[list[Bullet], list[str]]:
    """Those of page.toml whose claims have come out as it says; and warnings about the others."""
    page = folder / PAGE
    outcomes = {f"{item.name}: {v.text}": v.outcome for item, s in told for v in s.verdicts}
    found, warnings = [], []
    for bullet in read_toml(page).get("summary", ()) if page.exists() else ():
        there = {outcomes.get(claim, "") for claim in bullet["claims"]}
        if there == {bullet["outcome"]}:
            numbers = lambda name: quantities_in(experiment_file(page, name), results)
            found.append(Bullet(bullet["outcome"], with_numbers(bullet["text"], page, numbers)))
        elif there <= {HOLDS, FAILS, OPEN}:
            warnings.append(
                f"{page}: {bullet['claims'][0]!r} and others: not all of them {bullet['outcome']}"
            )
    return found, warnings
