"""A table or figure with what people make of it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ..results import experiment_file, results_file
from ..sweep.experiment import Experiment
from .catalog import Item, read_item
from .chapter import Chapter, Quantities
from .figures import figure
from .remarks import read_remarks
from .table1 import table1


def read_chapter(item: Item) -> Chapter:
    section = _section(item)
    remarks = read_remarks(item.file, lambda name: quantities(item, name) if name else section.quantities)
    return replace(section, remarks=remarks)


def quantities(beside: Item, name: str) -> Quantities:
    """Of another experiment, by a path from this one's file."""
    return quantities_in(experiment_file(beside.file, name), beside.folder)


def quantities_in(file: Path, folder: Path | None) -> Quantities:
    if not file.exists():
        return {}
    results = results_file(file, folder)
    return _quantities(file, folder, results.stat().st_mtime_ns if results.exists() else 0)


@lru_cache
def _quantities(file: Path, folder: Path | None, _written: int) -> Quantities:
    """Once: prose has many numbers."""
    return _section(read_item(file, folder)).quantities


def _section(item: Item) -> Chapter:
    return table1(item.table) if item.figure is None else figure(item.figure, item.table)


def sweep_as_text(experiment: Experiment, file: Path, results: Path | None) -> str:
    """The table that a sweep was made for, and how to get it as a page."""
    where = "" if results is None else f" --results {results}"
    return f"{table1(experiment).text()}\nAs a page: jacnorm report {file}{where}"
