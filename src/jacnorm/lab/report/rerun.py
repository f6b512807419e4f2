"""The commands that make a page again from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..reproduce.catalog import QUICK_FOLDER, Item


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
