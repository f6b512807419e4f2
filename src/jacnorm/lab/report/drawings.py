"""Figures for the page, as SVG that stands by itself and is the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from ..figures.common import alone
from ..figures.cost import both, errors, times
from ..figures.methods import accuracy, boundary, caption, curves, relation
from ..figures.robustness import TITLES, attack, attacks_in, is_judged, noise, robustness, strong_attacks
from ..figures.weights import over_weights
from ..pictures import to_svg
from ..reproduce.chapter import Chapter
from ..reproduce.paper_figures import ESTIMATES

CURVES = "Interquartile mean over the runs of a method, epoch by epoch, with 95 % intervals"
DISTANCES = "Distance to the boundary: quartiles, and 5 % and 95 % of the points"
WEIGHTS = "Accuracy and σ for each λ, mean ± standard deviation over seeds; an arrow: further down"


@dataclass(frozen=True)
class Drawing:
    name: str
    caption: str
    svg: str
    wide: bool  # takes a row of its own


def drawings(chapter: Chapter) -> list[Drawing]:
    """The panels of a chapter, one by one, so that a phone can stack them."""
    return [
        Drawing(name, caption, to_svg(figure, name, caption), bool(figure.get_figwidth() > 6))
        for name, caption, figure in _panels(chapter)
    ]


def picture(chapter: Chapter) -> tuple[str, Figure] | None:
    """The whole table or figure as one, for a page of its own: caption and drawing."""
    frame = chapter.frame
    if chapter.accuracy is not None:
        return "Test accuracy, mean ± standard deviation", accuracy(chapter.accuracy)
    if chapter.curves is not None:
        return CURVES, curves(chapter.curves)
    if frame is None:
        return None
    if chapter.figure == 3:
        told = "Accuracy under noise and attacks, mean ± s.d. over the networks of a method"
        return told, robustness(frame)
    if chapter.figure == 4:
        return DISTANCES, boundary(frame)
    told = "Time of a step with each penalty, and error of each estimate of σ"
    return told, both(frame, _estimated(frame))


def picture_of_weights(chapter: Chapter) -> tuple[str, Figure] | None:
    """Of several λ, if there are any."""
    return None if chapter.weights is None else (WEIGHTS, over_weights(chapter.weights))


def _panels(chapter: Chapter) -> Iterator[tuple[str, str, Figure]]:
    frame, name = chapter.frame, chapter.name
    if chapter.accuracy is not None:
        ours = "ours and the paper's, " if chapter.accuracy["paper"].notna().any() else ""
        told = f"Test accuracy, {ours}mean ± standard deviation"
        yield f"{name}-accuracy", told, accuracy(chapter.accuracy)
    if (found := picture_of_weights(chapter)) and chapter.quantities["paper"].empty:
        yield f"{name}-weights", *found  # where the paper's numbers are, λ is no question
    if frame is not None and chapter.figure == 3:
        yield f"{name}-noise", "White noise", alone(noise, frame, loc="lower left")
        for kind in attacks_in(frame):
            panel = partial(attack, name=kind, measure="last")
            told = f"{TITLES[kind]}, the last iterate as in the paper"
            yield f"{name}-{kind}", told, alone(panel, frame, loc="lower left")
        if is_judged(frame):
            told = "What four strong attacks leave, one after the other"
            yield f"{name}-judge", told, alone(strong_attacks, frame, width=6)
    if frame is not None and chapter.figure == 4:
        yield f"{name}-distance", DISTANCES, boundary(frame)
    yield from _relations(chapter)
    if chapter.curves is not None:
        yield f"{name}-curves", CURVES, curves(chapter.curves)
    if frame is not None and chapter.figure == 5:
        yield f"{name}-time", "Time of a step with each penalty", alone(times, frame, height=4.4)
        if of := _estimated(frame):
            yield f"{name}-error", "Error of each estimate of σ", alone(errors, of, height=4.4)


def _relations(chapter: Chapter) -> Iterator[tuple[str, str, Figure]]:
    """Those in which there is something to see."""
    for by, of, methods in chapter.relations:
        x, y = chapter.quantities[by], chapter.quantities[of]
        drawn = [one for one in methods or y if (x[one] + y[one]).notna().any()]
        y = y[drawn].where(x[drawn].notna())
        if y.stack().nunique() > 1:
            yield f"{chapter.name}-{of}-by-{by}", caption(by, of), relation(x[drawn], y, (by, of))


def _estimated(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The networks that each estimate is measured on."""
    of = {key: frame[frame["method"] == label] for key, (label, _) in ESTIMATES.items()}
    return {key: networks for key, networks in of.items() if len(networks)}
