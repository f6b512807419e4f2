"""Which figures there are: of the records of evaluations, as files; of chapters, for pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from ..evaluate.compare import Record, grouped
from ..pictures import save_figure, to_svg
from ..reproduce.chapter import Chapter
from ..reproduce.measurement import as_frame
from ..reproduce.paper_figures import ESTIMATES
from . import methods, panels
from .panels import alone

CHANGES: dict[str, Callable[[pd.DataFrame], Figure]] = {  # in points, below the clean accuracy
    "noise-change": partial(alone, partial(panels.noise, change=True), loc="lower left", single=None),
    "attacks-change": partial(panels.attacks, change=True),
    "judge-change": partial(alone, partial(panels.strong_attacks, change=True), width=6, single=None),
}
FIGURES: dict[str, Callable[[pd.DataFrame], Figure]] = {
    "noise": partial(alone, panels.noise, loc="lower left"),
    "attacks": panels.attacks,
    "judge": partial(alone, panels.strong_attacks, width=6),
    "boundary": methods.boundary,
    "calibration": methods.calibration,
    "landscape": methods.landscape,
    "cost": lambda frame: panels.time_and_error(
        frame, dict.fromkeys(ESTIMATES, frame)
    ),  # of the architecture
}

CURVES = "Interquartile mean over the runs of a method, epoch by epoch, with 95 % intervals"
DISTANCES = "Distance to the boundary: quartiles, and 5 % and 95 % of the points"
WEIGHTS = "Accuracy and σ for each λ, mean ± standard deviation over seeds; an arrow: further down"


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


@dataclass(frozen=True)
class Drawing:
    name: str
    caption: str
    svg: str
    wide: bool  # takes a row of its own


def drawings(chapter: Chapter) -> list[Drawing]:
    """The panels of a chapter, one by one, so that a phone can stack them."""
    return [
        Drawing(name, told, to_svg(figure, name, told), bool(figure.get_figwidth() > 6))
        for end, told, figure in _panels(chapter)
        for name in [f"{chapter.name}-{end}"]
    ]


def picture(chapter: Chapter) -> tuple[str, Figure] | None:
    """The whole table or figure as one, for a page of its own: caption and drawing."""
    if chapter.accuracy is not None:
        return "Test accuracy, mean ± standard deviation", methods.accuracy(chapter.accuracy)
    if chapter.curves is not None:
        return CURVES, methods.curves(chapter.curves)
    if chapter.frame is None or chapter.figure is None:
        return None
    told, draw_whole = WHOLE[chapter.figure]
    return told, draw_whole(chapter.frame)


def picture_of_weights(chapter: Chapter) -> tuple[str, Figure] | None:
    """Of several λ, if there are any."""
    return None if chapter.weights is None else (WEIGHTS, methods.over_weights(chapter.weights))


def _panels(chapter: Chapter) -> Iterator[tuple[str, str, Figure]]:
    """The end of its name, its caption, and the drawing."""
    if chapter.accuracy is not None:
        ours = "ours and the paper's, " if chapter.accuracy["paper"].notna().any() else ""
        told = f"Test accuracy, {ours}mean ± standard deviation"
        yield "accuracy", told, methods.accuracy(chapter.accuracy)
    if (found := picture_of_weights(chapter)) and chapter.quantities["paper"].empty:
        yield "weights", *found  # where the paper's numbers are, λ is no question
    if chapter.curves is not None:
        yield "curves", CURVES, methods.curves(chapter.curves)
    if chapter.frame is not None and chapter.figure is not None:
        yield from PANELS[chapter.figure](chapter.frame)
    for by, of, named in chapter.relations:
        x, y = chapter.quantities[by], chapter.quantities[of]
        drawn = [one for one in named or y if (x[one] + y[one]).notna().any()]
        x, y = x[drawn], y[drawn].where(x[drawn].notna())
        if y.stack().nunique() > 1:  # there is something to see
            yield f"{of}-by-{by}", methods.caption(by, of), methods.relation(x, y, (by, of))


def _robustness(frame: pd.DataFrame) -> Iterator[tuple[str, str, Figure]]:
    yield "noise", "White noise", alone(panels.noise, frame, loc="lower left")
    for kind in panels.attacks_in(frame):
        panel = partial(panels.attack, name=kind, measure="last")
        told = f"{panels.ATTACKS[kind]}, the last iterate as in the paper"
        yield kind, told, alone(panel, frame, loc="lower left")
    if panels.is_judged(frame):
        told = "What four strong attacks leave, one after the other"
        yield "judge", told, alone(panels.strong_attacks, frame, width=6)


def _time_and_error(frame: pd.DataFrame) -> Iterator[tuple[str, str, Figure]]:
    yield "time", "Time of a step with each penalty", alone(panels.times, frame, height=4.4)
    if of := _estimated(frame):
        yield "error", "Error of each estimate of σ", alone(panels.errors, of, height=4.4)


def _estimated(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The networks that each estimate is measured on."""
    of = {key: frame[frame["method"] == method] for key, (method, _) in ESTIMATES.items()}
    return {key: networks for key, networks in of.items() if len(networks)}


# By the number of the figure: its panels, and all of it in one.
PANELS: dict[int, Callable[[pd.DataFrame], Iterable[tuple[str, str, Figure]]]] = {
    3: _robustness,
    4: lambda frame: [("distance", DISTANCES, methods.boundary(frame))],
    5: _time_and_error,
}
WHOLE: dict[int, tuple[str, Callable[[pd.DataFrame], Figure]]] = {
    3: ("Accuracy under noise and attacks, mean ± s.d. over the networks of a method", panels.robustness),
    4: (DISTANCES, methods.boundary),
    5: (
        "Time of a step with each penalty, and error of each estimate of σ",
        lambda frame: panels.time_and_error(frame, _estimated(frame)),
    ),
}
