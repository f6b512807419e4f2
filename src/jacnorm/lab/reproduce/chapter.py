"""Everything about one table or figure, before it becomes text, Markdown or HTML."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from textwrap import fill
from typing import Any

import pandas as pd

from ..claims import Outcome, Quantities
from ..wording import markdown_table, table

CLAIMS = "Claims (p decides, corrected for the number of tests; where there is none, the interval)"
POINTS = "points of accuracy"


@dataclass(frozen=True)
class Table:
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = frozenset()  # cells in bold, by row and column ...
    bold: str = ""  # ... and why they are

    @classmethod
    def of(cls, caption: str, cells: pd.DataFrame, **more: Any) -> Table:
        """From a frame of texts. The index is the first column."""
        rows = tuple((str(name), *row) for name, row in zip(cells.index, cells.to_numpy(), strict=True))
        return cls(caption, (str(cells.index.name), *map(str, cells)), rows, **more)

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
        """With an explanation if something is bold."""
        return f"{self.caption} Bold: {self.bold}." if self.best else self.caption


@dataclass(frozen=True)
class Chapter:
    name: str  # the experiment's
    title: str
    notes: tuple[str, ...]  # how the numbers came about, what is missing
    tables: tuple[Table, ...] = ()
    verdicts: tuple[Outcome, ...] = ()
    short: tuple[str, ...] = ()  # what came out, in sentences that can be quoted
    warnings: tuple[str, ...] = ()
    under_way: str = ""  # how far the runs are; empty when all are finished
    quantities: Quantities = field(default_factory=dict)  # all that was measured
    results: tuple[dict[str, Any], ...] = ()  # the records it is made from
    remarks: tuple[str, ...] = ()  # paragraphs that people wrote about it
    figure: int | None = None
    curves: pd.DataFrame | None = None  # of runs to draw: method, epoch, value
    accuracy: pd.DataFrame | None = None  # of a table to draw: mean, sd, paper, paper_sd of each method
    weights: pd.DataFrame | None = None  # of each λ, if there are several: see weights.by_weight
    frame: pd.DataFrame | None = None  # of a figure to draw: a row for each network
    relations: tuple[tuple[str, str, tuple[str, ...]], ...] = ()  # two quantities, and the methods to draw

    @property
    def empty(self) -> bool:
        return not self.results

    def text(self) -> str:
        """For a terminal."""
        parts = [f"{self.title}\n{'=' * len(self.title)}", "\n".join(map(_wrapped, self.notes))]
        parts += [table.text() for table in self.tables]
        if self.verdicts:
            parts.append(CLAIMS)
            parts += ["\n".join([*map(_wrapped, says), *map(_line, of)]) for says, of in self._by_words()]
        parts += map(_wrapped, self.remarks)
        parts += [f"warning: {warning}" for warning in self.warnings]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _by_words(self) -> Any:
        """Verdicts, grouped by the words of the paper that they test."""
        return groupby(self.verdicts, lambda verdict: verdict.says)


def _wrapped(text: str) -> str:
    return fill(text, 100, break_on_hyphens=False, break_long_words=False)


def _line(verdict: Outcome) -> str:
    whose = " (ours)" if verdict.ours else ""
    return f"  {verdict.outcome.upper()}: {verdict.text}{whose}\n    {verdict.evidence}"
