"""What accuracy does not show: calibration, and the landscape of the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..evaluate.common import wilson
from ..looks import looks
from .common import by_method, counted, intervals, tidy

ENOUGH = 10  # images, for a bin to be drawn
QUANTITIES = {"slope": "slope, mean ‖∇ₓ loss‖", "curvature": "curvature along an attack's step"}


def calibration(frame: pd.DataFrame) -> Figure:
    """Reliability: the networks of a method are pooled."""
    parts = by_method(frame, lambda record: record["calibration"])
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot((0, 100), (0, 100), color="0.6", linewidth=1, zorder=0)
    lowest = 100.0
    for (label, of), look in zip(parts.items(), looks(parts), strict=True):
        ece = np.mean([part["ece"] for part in of])
        sure, right, low, high = _pooled(of)
        ends = np.abs(np.stack([low, high]) - right)
        style: dict[str, Any] = {"linewidth": 1.6, "markersize": 4.5, "capsize": 2, "elinewidth": 0.7, **look}
        axes.errorbar(sure, right, ends, label=f"{label}, error {ece:.3f}", clip_on=False, **style)
        lowest = min([lowest, *sure, *low])
    axes.set_xlabel(f"confidence, % (bins of {ENOUGH} images or more)")
    axes.set_ylabel("accuracy, %")
    axes.set(xlim=(max(0, lowest - 5), 100), ylim=(max(0, lowest - 5), 100))
    axes.set_title(counted("Calibration", next(iter(parts.values()))[0]) + "; 95 % intervals", fontsize=9)
    tidy(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower right", handlelength=3)
    return figure


def landscape(frame: pd.DataFrame) -> Figure:
    parts = by_method(frame, lambda record: record["landscape"])
    figure = Figure(figsize=(7.5, 1.6 + 0.35 * len(parts)), layout="constrained")
    colors = [look["color"] for look in looks(parts)]
    for axes, (key, text) in zip(figure.subplots(1, 2, sharey=True), QUANTITIES.items(), strict=True):
        values = [[part[key] for part in of] for of in parts.values()]
        bars = [np.std(v, ddof=1) if len(v) > 1 else 0 for v in values]
        means = [np.mean(v) for v in values]
        for i, (mean, bar, color) in enumerate(zip(means, bars, colors, strict=True)):
            axes.errorbar(mean, i, xerr=bar, fmt="o", color=color, capsize=3)
        axes.set_yticks(range(len(parts)), list(parts))
        axes.set_ylim(len(parts) - 0.5, -0.5)
        ends = [0, *(m + side * b for m, b in zip(means, bars, strict=True) for side in (-1, 1))]
        margin = 0.08 * (max(ends) - min(ends))
        axes.set_xlim(min(ends) - margin * (min(ends) < 0), max(ends) + margin)
        axes.set_xlabel(text)
        tidy(axes)
    title = counted("Loss landscape", next(iter(parts.values()))[0])
    figure.suptitle("; ".join(filter(None, [title, intervals(frame, single=None)])), fontsize=9)
    return figure


def _pooled(parts: list[dict[str, Any]]) -> tuple[Any, Any, Any, Any]:
    """Confidence, accuracy and its interval in percent, of the bins with enough images.

    The interval is that of the images of one network: all networks saw the same.
    """
    counts = np.array([part["counts"] for part in parts], dtype=float)
    enough = counts.sum(0) >= ENOUGH
    total = counts.sum(0)[enough]
    sure, right = (
        (_numbers(parts, key) * counts).sum(0)[enough] / total for key in ("confidence", "accuracy")
    )
    each = np.maximum(total / len(parts), 1)
    low, high = np.array([wilson(part, n) for part, n in zip(right, each, strict=True)]).reshape(-1, 2).T
    return 100 * sure, 100 * right, 100 * low, 100 * high


def _numbers(parts: list[dict[str, Any]], key: str) -> Any:
    return np.array([[value or 0 for value in part[key]] for part in parts])
