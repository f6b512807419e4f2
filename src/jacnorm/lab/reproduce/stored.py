"""The result files of an experiment. What cannot be used is named, never dropped in silence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..results import NewerVersionError, ResultError, read_result
from .numbers import count

Result = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    results: dict[str, Result]  # by the run's id
    warnings: tuple[str, ...] = ()
    newer: bool = False  # a newer jacnorm has been at work here


def read_folder(folder: Path, known: Collection[str], needs: tuple[str, ...]) -> Stored:
    """What is in a folder of results/ of the runs asked for."""
    results: dict[str, Result] = {}
    warnings, strangers, newer = [], [], False
    for file in sorted(folder.glob("*.json")):
        try:
            result = read_result(file, needs)
        except ResultError as error:
            warnings.append(f"{error}: skipped")
            newer |= isinstance(error, NewerVersionError)
            continue
        if result["id"] in known and result["id"] == file.stem:
            results[result["id"]] = result
        else:
            strangers.append(file.name)
    if strangers:
        warnings.append(
            f"{folder}: {count(len(strangers), 'result file')} of runs that this experiment does not ask "
            f"for: skipped ({_some(strangers)})"
        )
    return Stored(results, tuple(warnings), newer)


def _some(names: list[str], shown: int = 3) -> str:
    rest = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {rest} more" if rest > 0 else "")
