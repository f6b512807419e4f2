"""How runs went: an interquartile mean over those of a method, epoch by epoch, in a band."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..looks import looks
from ..tasks.statistics import interquartile_mean, interval
from .common import tidy

FEWEST = 3  # runs, for a band
ACROSS = 2  # panels beside each other


def curves(frame: pd.DataFrame) -> Figure:
    """Of a row a run and epoch, with `method`, `epoch` and `value`."""
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    _panel(figure.subplots(), frame)
    return figure


def panels(frames: Mapping[str, pd.DataFrame]) -> Figure:
    """Several, by their titles."""
    rows = -(-len(frames) // ACROSS)
    figure = Figure(figsize=(6 * ACROSS, 4 * rows), layout="constrained")
    grid = list(figure.subplots(rows, ACROSS, squeeze=False).flat)
    for axes, (title, frame) in zip(grid, frames.items(), strict=False):
        _panel(axes, frame)
        axes.set_title(title, fontsize=11)
    for axes in grid[len(frames) :]:
        axes.set_axis_off()
    return figure


def _panel(axes: Any, frame: pd.DataFrame) -> None:
    methods = [str(name) for name in frame["method"].cat.categories if (frame["method"] == name).any()]
    by_method = looks(name.partition(" ")[0] for name in methods)  # without their strength
    for method, style in zip(methods, by_method, strict=True):
        _curve(axes, frame[frame["method"] == method], method, style)
    axes.set_xlabel("epoch")
    axes.set_ylabel(frame.attrs["quantity"])
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)


def _curve(axes: Any, of: pd.DataFrame, method: str, style: dict[str, Any]) -> None:
    groups = {epoch: values.to_numpy(dtype=float) for epoch, values in of.groupby("epoch")["value"]}
    middle = [interquartile_mean(values) for values in groups.values()]
    look = {"color": style["color"], "linestyle": style["linestyle"]}
    axes.plot(list(groups), middle, label=method, linewidth=1.6, **look)
    bands = np.array([interval([v]) if len(v) >= FEWEST else (np.nan, np.nan) for v in groups.values()])
    axes.fill_between(list(groups), *bands.T, color=style["color"], alpha=0.12, linewidth=0)
