"""One figure for each evaluation that all the records have, and have alike."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ..evaluate.compare import Record, grouped
from ..evaluate.kinds import EVALUATIONS
from .common import save


def draw(records: Sequence[Record], folder: Path) -> list[str]:
    """SVG and PNG of each, named after the evaluation. Which files are there and of other records."""
    records = _alike(records)
    groups, outdated = grouped(records), list[str]()
    for name, evaluation in EVALUATIONS.items():
        if all(record.get(name) for record in records):
            module, _, function = evaluation.figure.partition(".")
            save(getattr(import_module(f".{module}", __package__), function)(groups), folder, name)
        elif (file := folder / f"{name}.svg").exists():
            outdated.append(file.name)
    return outdated


def _alike(records: Sequence[Record]) -> list[Record]:
    """Without attacks that some were not put to, or at another strength: a picture tells one."""
    strengths = [{name: a["epsilons"] for name, a in r.get("attacks", {}).items()} for r in records]
    shared = [name for name, e in strengths[0].items() if all(other.get(name) == e for other in strengths)]
    judged_alike = len({r.get("judge", {}).get("epsilon") for r in records}) == 1
    return [
        record
        | {"attacks": {name: record["attacks"][name] for name in shared}}
        | {"judge": record.get("judge") if judged_alike else None}
        for record in records
    ]
