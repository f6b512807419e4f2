"""A table or figure with what people make of it: `remarks` in its file, with numbers that are computed.

{accuracy: spectral}                                  a mean over seeds, of this experiment
{accuracy: spectral - l2}                             a mean difference, over the seeds that both have
{judge@../figure3-kmnist: none}                       of another experiment, by a path from this file
{-noise: none}, {error%: random-round}                with the other sign; in percent
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ..config import ConfigError, read_toml
from ..results import experiment_file, results_file
from ..sweep.experiment import Experiment
from ..tables import NOTHING, plain
from .catalog import Item, read_item
from .chapter import Chapter, Quantities
from .figures import figure
from .table1 import table1

NUMBER = re.compile(r"\{(-?)([\w-]+)(%?)(?:@([\w./-]+))?: ([\w-]+)(?: - ([\w-]+))?\}")
TWO_DIGITS = {"accuracy", "best_accuracy", "late_accuracy", "paper", "sigma", "first_order", "time"}


def read_chapter(item: Item) -> Chapter:
    chapter = _chapter(item)

    def quantities_of(name: str) -> Quantities:
        other = experiment_file(item.file, name)
        return quantities_in(other, item.folder) if name else chapter.quantities

    paragraphs = read_toml(item.file).get("remarks", "").split("\n\n")
    whole = [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip()]
    remarks = tuple(with_numbers(text, item.file, quantities_of) for text in whole)
    return replace(chapter, remarks=remarks)


def quantities_in(file: Path, folder: Path | None) -> Quantities:
    """Of the experiment in a file; nothing if there is no such file."""
    if not file.exists():
        return {}
    results = results_file(file, folder)
    return _quantities(file, folder, results.stat().st_mtime_ns if results.exists() else 0)


@lru_cache
def _quantities(file: Path, folder: Path | None, _written: int) -> Quantities:
    """Once: prose has many numbers."""
    return _chapter(read_item(file, folder)).quantities


def _chapter(item: Item) -> Chapter:
    return table1(item.table) if item.figure is None else figure(item.figure, item.table)


def with_numbers(text: str, file: Path, quantities_of: Callable[[str], Quantities]) -> str:
    def number(match: re.Match[str]) -> str:
        sign, quantity, percent, experiment, a, b = match.groups()
        of = quantities_of(experiment or "").get(quantity)
        if of is None:
            return NOTHING
        if absent := [name for name in (a, b) if name and name not in of]:
            raise ConfigError(f"{file}: {match[0]}: {quantity} is not known of {absent[0]!r}")
        mean = (of[a] - of[b] if b else of[a]).mean() * (-1 if sign else 1) * (100 if percent else 1)
        if percent and not math.isnan(mean):
            return f"{mean:.3g}"
        return plain(mean, 2 if quantity in TWO_DIGITS else 1)

    return NUMBER.sub(number, text)


def question(file: Path) -> tuple[str, str]:
    """The first line of an experiment's file: what it asks, and the answer, if it has one."""
    first = file.read_text(encoding="utf-8").split("\n", 1)[0]
    asked, mark, answer = first.removeprefix("# ").partition("? ")
    return (f"{asked}?", answer) if first.startswith("# ") and mark else ("", "")


def sweep_as_text(experiment: Experiment, file: Path, results: Path | None) -> str:
    """The table that a sweep was made for, and how to get it as a page."""
    where = "" if results is None else f" --results {results}"
    return f"{table1(experiment).text()}\nAs a page: jacnorm report {file}{where}"
