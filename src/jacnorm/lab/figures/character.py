"""What accuracy does not show: calibration, and the landscape of the loss."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..pictures import STYLES
from .common import by_method, intervals, tidy

ENOUGH = 10  # images, for a bin to be drawn
QUANTITIES = {"slope": "slope, mean ‖∇ₓ loss‖", "curvature": "curvature along an attack's step"}


def calibration(frame: pd.DataFrame) -> Figure:
    """Reliability: the networks of a method are pooled."""
    parts = by_method(frame, lambda record: record["calibration"])
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.axline((100, 100), slope=1, color="0.6", linewidth=1, zorder=0)
    for (label, of), style in zip(parts.items(), cycle(STYLES), strict=False):
        ece = np.mean([part["ece"] for part in of])
        axes.plot(*_pooled(of), label=f"{label}, error {ece:.3f}", linewidth=1.6, markersize=4.5, **style)
    axes.set_xlabel(f"confidence, % (bins of {ENOUGH} images or more)")
    axes.set_ylabel("accuracy, %")
    lowest = min(axes.dataLim.x0, axes.dataLim.y0) - 5
    axes.set(xlim=(lowest, 102), ylim=(lowest, 102))
    tidy(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower right", handlelength=3)
    return figure


def landscape(frame: pd.DataFrame) -> Figure:
    parts = by_method(frame, lambda record: record["landscape"])
    figure = Figure(figsize=(7.5, 1.6 + 0.35 * len(parts)), layout="constrained")
    for axes, (key, text) in zip(figure.subplots(1, 2, sharey=True), QUANTITIES.items(), strict=True):
        values = [[part[key] for part in of] for of in parts.values()]
        bars = [np.std(v, ddof=1) if len(v) > 1 else 0 for v in values]
        means = [np.mean(v) for v in values]
        axes.errorbar(means, range(len(parts)), xerr=bars, fmt="o", color="black", capsize=3)
        axes.set_yticks(range(len(parts)), list(parts))
        axes.set_ylim(len(parts) - 0.5, -0.5)
        ends = [0, *(m + side * b for m, b in zip(means, bars, strict=True) for side in (-1, 1))]
        margin = 0.08 * (max(ends) - min(ends))
        axes.set_xlim(min(ends) - margin * (min(ends) < 0), max(ends) + margin)
        axes.set_xlabel(text)
        tidy(axes)
    if title := intervals(frame):
        figure.suptitle(title, fontsize=9)
    return figure


def _pooled(parts: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Confidence and accuracy in percent, of the bins with enough images."""
    counts = np.array([part["counts"] for part in parts], dtype=float)
    enough = counts.sum(0) >= ENOUGH
    sums = [(_numbers(parts, key) * counts).sum(0)[enough] for key in ("confidence", "accuracy")]
    return 100 * sums[0] / counts.sum(0)[enough], 100 * sums[1] / counts.sum(0)[enough]


def _numbers(parts: list[dict[str, Any]], key: str) -> Any:
    return np.array([[value or 0 for value in part[key]] for part in parts])
