"""What is told of one table or figure, before it is text, Markdown or HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from textwrap import fill
from typing import Any

from ..tables import markdown_table, table

Groups = dict[str, list[dict[str, Any]]]  # method -> records of its networks
Quantities = Mapping[str, Mapping[str, Mapping[Any, float]]]  # quantity -> method -> seed -> value
Points = dict[str, tuple[float, float | None]]  # method -> mean and standard deviation


CLAIMS = "Claims (p decides, corrected for the number of tests; where there is none, the interval)"


HOLDS, FAILS, OPEN, UNTESTED = "holds", "does not hold", "cannot be told", "not tested"
POINTS = "points of accuracy"


@dataclass(frozen=True)
class Outcome:
    text: str
    outcome: str
    evidence: str
    ours: bool = False
    says: tuple[str, ...] = ()  # the words that were tested
    compared: tuple[str, ...] = ()  # the two methods that the evidence is about, if it is about two


@dataclass(frozen=True)
class Table:
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()  # cells to stand out, by row and column ...
    bold: str = ""  # ... and why

    def text(self) -> str:
        return f"{_wrapped(self.caption)}\n\n{table([self.header, *self.rows])}"

    def markdown(self) -> str:
        rows = [
            tuple(f"**{cell}**" if (i, j) in self.best else cell for j, cell in enumerate(row))
            for i, row in enumerate(self.rows)
        ]
        return f"{markdown_table([self.header, *rows])}\n\n*{self.marked_caption}*"

    @property
    def marked_caption(self) -> str:
        """Where something is bold, that is explained."""
        return f"{self.caption} Bold: {self.bold}." if self.best else self.caption


@dataclass(frozen=True)
class Relation:
    """Two quantities of the same networks."""

    x: str
    y: str
    points: dict[str, list[tuple[float, float]]]  # method -> a point a network


@dataclass(frozen=True)
class Chapter:
    name: str  # the experiment's
    title: str
    notes: tuple[str, ...]  # how the numbers came about, what is missing
    tables: tuple[Table, ...] = ()
    verdicts: tuple[Outcome, ...] = ()
    warnings: tuple[str, ...] = ()
    under_way: str = ""  # how far the runs are; nothing when all are there
    accuracy: tuple[Points, Points] | None = None  # ours and the paper's, to draw
    figure: int | None = None
    groups: Groups | None = None  # to draw that figure from
    relations: tuple[Relation, ...] = ()  # to draw beside it
    quantities: Quantities = field(default_factory=dict)  # all that was measured
    results: tuple[dict[str, Any], ...] = ()  # all records that it was made of
    remarks: tuple[str, ...] = ()  # what people make of it, paragraph by paragraph

    @property
    def empty(self) -> bool:
        return not self.results

    def text(self) -> str:
        """For a terminal."""
        parts = [f"{self.title}\n{'=' * len(self.title)}", "\n".join(map(_wrapped, self.notes))]
        parts += [table.text() for table in self.tables]
        if self.verdicts:
            parts.append(CLAIMS)
            parts += [_told(says, list(of)) for says, of in groupby(self.verdicts, _words)]
        parts += map(_wrapped, self.remarks)
        parts += [f"warning: {warning}" for warning in self.warnings]
        return "\n\n".join(part for part in parts if part) + "\n"


def _wrapped(text: str) -> str:
    return fill(text, 100, break_on_hyphens=False, break_long_words=False)


def _words(verdict: Outcome) -> str:
    return "\n".join(map(_wrapped, verdict.says))


def _told(says: str, verdicts: list[Outcome]) -> str:
    """Verdicts, below the words of the paper that they are about."""
    return "\n".join([*([says] if says else []), *map(_line, verdicts)])


def _line(verdict: Outcome) -> str:
    whose = " (ours)" if verdict.ours else ""
    return f"  {verdict.outcome.upper()}: {verdict.text}{whose}\n    {verdict.evidence}"
