"""What all figures share: lines with error bars for each method, legends, axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..evaluate.common import wilson
from ..looks import looks

OVER_IMAGES = "95 % intervals over the images"
Panel = Callable[[Any, pd.DataFrame], None]


def figure_with_axes(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def alone(
    panel: Callable[[Any, Any], None], data: Any, width: float = 5.5, height: float = 4.0, **legend: Any
) -> Figure:
    """A panel as a figure of its own, with a legend unless the panel has one."""
    figure, axes = figure_with_axes(width, height)
    panel(axes, data)
    if axes.get_legend() is None:
        add_legend(axes, data, **legend)
    return figure


def by_method(frame: pd.DataFrame, value: Callable[[dict[str, Any]], Any]) -> dict[str, list[Any]]:
    """A value of each network's record, method by method."""
    groups = frame.groupby("method", observed=True)["record"]
    return {str(name): [value(record) for record in records] for name, records in groups}


def lines(
    axes: Any,
    x: Sequence[float],
    curves: dict[str, Any],
    *,
    apart: float = 0.0,
    like: Iterable[str] | None = None,
    bars: Callable[[Any], Any] | None = None,
) -> None:
    """A line for each method from an array (networks, points), with bars of ± one standard deviation.

    `apart` shifts each line to the right of the one before, so that equal lines do not hide each other.
    `like` names the methods whose look is used, if the names are others. `bars` makes the bars of a single
    network.
    """
    for i, ((name, values), style) in enumerate(zip(curves.items(), looks(like or curves), strict=True)):
        array = np.asarray(values, dtype=float)
        alone = None if bars is None else bars(array[0])
        axes.errorbar(
            np.asarray(x) + apart * (i - (len(curves) - 1) / 2),
            array.mean(0),
            array.std(0, ddof=1) if len(array) > 1 else alone,
            label=name,
            linewidth=1.6,
            markersize=4.5,
            capsize=3,
            elinewidth=0.8,
            **style,
        )


def over_images(images: int) -> Callable[[Any], Any]:
    """The 95 % intervals of shares in percent that were counted on so many images."""

    def bars(percent: Any) -> Any:
        ends = np.array([wilson(part / 100, images) for part in percent])
        return np.abs(100 * ends.T - percent)

    return bars


def tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def add_legend(axes: Any, frame: pd.DataFrame, single: str | None = OVER_IMAGES, **options: Any) -> None:
    look = {"frameon": False, "title_fontsize": 8, "fontsize": 9, "handlelength": 3}
    axes.legend(title=intervals(frame, single), **look, **options)


def intervals(frame: pd.DataFrame, single: str | None) -> str | None:
    """What the bars mean; `single` is for one network per method."""
    counts = frame.groupby("method", observed=True).size()
    return single if counts.max() == 1 else f"mean ± s.d. over {span(counts)} networks"


def counted(title: str, part: dict[str, Any]) -> str:
    """The title, with the number of images if the record has it."""
    return f"{title}, {part['images']:,} images" if "images" in part else title


def span(counts: pd.Series) -> str:
    low, high = counts.min(), counts.max()
    return f"{low}" if low == high else f"{low} to {high}"
