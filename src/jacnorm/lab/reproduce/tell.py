"""What is there of a table or figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..sweep.experiment import Experiment
from .catalog import Item
from .figures import figure
from .remarks import read_remarks
from .section import Section
from .table1 import table1


def tell(item: Item) -> Section:
    told = table1(item.table) if item.figure is None else figure(item.figure, item.table)
    return replace(told, remarks=read_remarks(item.file))


def tell_sweep(experiment: Experiment, file: Path, results: Path | None) -> str:
    """The table that a sweep was made for, and how to get it as a page."""
    where = "" if results is None else f" --results {results}"
    return f"{table1(experiment).text()}\nAs a page: jacnorm report {file}{where}"
