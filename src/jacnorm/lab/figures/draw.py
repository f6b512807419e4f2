"""One figure for each evaluation that all the records have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ..evaluate.groups import Groups, Record, grouped
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


def draw(records: Sequence[Record], folder: Path) -> None:
    """SVG and PNG of each, named after the evaluation."""
    groups = grouped(records)
    for name, figure in FIGURES.items():
        if all(name in record for record in records):
            save(figure(groups), folder, name)
