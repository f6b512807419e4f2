"""What results/ holds of a table or figure."""

from __future__ import annotations

from pathlib import Path

from .catalog import Item
from .figures import figure
from .section import Section
from .table1 import table1


def tell(item: Item, results: Path) -> Section:
    if item.figure is None:
        return table1(item.table, results)
    return figure(item.figure, item.table, results)
