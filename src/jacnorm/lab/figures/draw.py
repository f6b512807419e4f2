"""One figure for each evaluation that all the records have, and have alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ..evaluate.compare import Record, grouped
from ..pictures import save_figure
from ..reproduce.measurement import as_frame
from .common import alone
from .cost import ESTIMATES, both
from .methods import boundary, calibration, landscape
from .robustness import attacks, noise, strong_attacks

CHANGES: dict[str, Callable[[pd.DataFrame], Figure]] = {  # in points, below the clean accuracy
    "noise-change": partial(alone, partial(noise, change=True), loc="lower left", single=None),
    "attacks-change": partial(attacks, change=True),
    "judge-change": partial(alone, partial(strong_attacks, change=True), width=6, single=None),
}
FIGURES: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "noise": partial(alone, noise, loc="lower left"),
    "attacks": attacks,
    "judge": partial(alone, strong_attacks, width=6),
    "boundary": boundary,
    "calibration": calibration,
    "landscape": landscape,
    "cost": lambda frame: both(frame, dict.fromkeys((*ESTIMATES, "bound"), frame)),  # of the architecture
}


def draw(records: Sequence[Record], folder: Path, *, change: bool = False) -> list[str]:
    """SVG and PNG of each, named after the evaluation. Which files are there and of other records."""
    records = _alike(records)
    frame, outdated = as_frame(grouped(records)), list[str]()
    for name, figure in (FIGURES | CHANGES).items():
        wanted = change or name not in CHANGES
        if wanted and all(record.get(name.removesuffix("-change")) for record in records):
            drawn = figure(frame)
            for ending in ("svg", "png"):
                save_figure(drawn, folder / f"{name}.{ending}")
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
