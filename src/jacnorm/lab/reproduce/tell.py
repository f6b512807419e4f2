"""What results/ holds of a table or figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..sweep.experiment import Experiment
from .catalog import Item
from .figures import figure
from .remarks import read_remarks
from .section import Section
from .table1 import table1


def tell(item: Item, results: Path) -> Section:
    told = table1(item.table, results) if item.figure is None else figure(item.figure, item.table, results)
    return replace(told, remarks=read_remarks(results / item.name))


def tell_sweep(experiment: Experiment, file: Path, results: Path) -> str:
    """The table that a sweep was made for, and how to get it as a page."""
    where = "" if results == Path("results") else f" --results {results}"
    return f"{table1(experiment, results).text()}\nAs a page: jacnorm report {file}{where}"
