"""The results that an experiment asks for, of those in its file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..results import read_results
from .numbers import count

Result = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    results: dict[str, Result]  # by the run's id
    warnings: tuple[str, ...] = ()
    newer: bool = False  # a newer jacnorm has been at work here


def read_stored(file: Path, known: Collection[str]) -> Stored:
    """What a file has of the runs asked for."""
    found = read_results(file)
    warnings = list(found.warnings)
    if strangers := [name for name in found.records if name not in known]:
        warnings.append(
            f"{file}: {count(len(strangers), 'result')} of runs that this experiment does not ask for: "
            f"skipped ({_some(strangers)})"
        )
    results = {name: record for name, record in found.records.items() if name in known}
    return Stored(results, tuple(warnings), bool(found.newer))


def _some(names: list[str], shown: int = 3) -> str:
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
