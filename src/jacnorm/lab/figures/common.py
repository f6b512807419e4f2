"""What all figures share: lines of methods with intervals over their networks, and how they look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..pictures import STYLES

METHODS = ("none", "l2", "frobenius", "spectral", "spectral-bound", "spectral-warm")  # as tables call them
Panel = Callable[[Any, pd.DataFrame], None]


def alone(
    panel: Callable[[Any, Any], None], data: Any, width: float = 5.5, height: float = 4.0, **legend: Any
) -> Figure:
    """A panel as a figure of its own; with a legend, unless it has one itself."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    panel(axes, data)
    if axes.get_legend() is None:
        add_legend(axes, data, **legend)
    return figure


def by_method(frame: pd.DataFrame, value: Callable[[dict[str, Any]], Any]) -> dict[str, list[Any]]:
    """Of each network's record, method by method."""
    groups = frame.groupby("method", observed=True)["record"]
    return {str(name): [value(record) for record in records] for name, records in groups}


def lines(
    axes: Any,
    x: Sequence[float],
    curves: dict[str, Any],
    *,
    apart: float = 0.0,
    looks: Iterable[str] | None = None,
) -> None:
    """A line a method, each from an array (networks, points); bars of ± one standard deviation.

    Each is drawn so far to the right of the one before: alike, they would hide each other. `looks` are the
    methods that they look like, where their names are others.
    """
    for i, ((name, values), style) in enumerate(zip(curves.items(), styles(looks or curves), strict=True)):
        array = np.asarray(values, dtype=float)
        axes.errorbar(
            np.asarray(x) + apart * (i - (len(curves) - 1) / 2),
            array.mean(0),
            array.std(0, ddof=1) if len(array) > 1 else None,
            label=name,
            linewidth=1.6,
            markersize=4.5,
            capsize=3,
            elinewidth=0.8,
            **style,
        )


def styles(names: Iterable[str]) -> list[dict[str, Any]]:
    """A method looks the same in every figure, whichever others are there; the rest get what is left."""
    names = list(names)
    own = dict(zip(METHODS, STYLES, strict=False))  # which has some left for others
    taken = [own[name.lower()] for name in names if name.lower() in own]
    left = cycle([style for style in STYLES if style not in taken] or STYLES)
    return [own.get(name.lower()) or next(left) for name in names]


def tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def add_legend(axes: Any, frame: pd.DataFrame, **options: Any) -> None:
    look = {"frameon": False, "title_fontsize": 8, "fontsize": 9, "handlelength": 3}
    axes.legend(title=intervals(frame), **look, **options)


def intervals(frame: pd.DataFrame) -> str | None:
    """What the bars are, or nothing when there are none."""
    counts = frame.groupby("method", observed=True).size()
    return None if counts.max() == 1 else f"mean ± s.d. over {span(counts)} networks"


def span(counts: pd.Series) -> str:
    low, high = counts.min(), counts.max()
    return f"{low}" if low == high else f"{low} to {high}"
