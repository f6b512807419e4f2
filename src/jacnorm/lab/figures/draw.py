"""One figure for each evaluation that all the records have, and have alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..evaluate.compare import Groups, Record, grouped
from .boundary import boundary
from .character import calibration, landscape
from .common import save
from .cost import cost
from .robustness import attacks, judge, noise

FIGURES: dict[str, Callable[[Groups], Figure]] = {
    "noise": noise,
    "attacks": attacks,
    "judge": judge,
    "boundary": boundary,
    "calibration": calibration,
    "landscape": landscape,
    "cost": cost,
}


def draw(records: Sequence[Record], folder: Path) -> list[str]:
    """SVG and PNG of each, named after the evaluation. Which files are there and of other records."""
    records = _alike(records)
    groups, outdated = grouped(records), list[str]()
    for name, figure in FIGURES.items():
        if all(record.get(name) for record in records):
            save(figure(groups), folder, name)
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
