"""What accuracy does not show: calibration, and the landscape of the loss."""

from __future__ import annotations

from itertools import cycle

import numpy as np
from matplotlib.figure import Figure

from ..evaluate.compare import Groups, Record
from ..pictures import STYLES
from .common import intervals, tidy

ENOUGH = 10  # images, for a bin to be drawn
QUANTITIES = {"slope": "slope, mean ‖∇ₓ loss‖", "curvature": "curvature along an attack's step"}


def calibration(groups: Groups) -> Figure:
    """Reliability: the networks of a group are pooled."""
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.axline((100, 100), slope=1, color="0.6", linewidth=1, zorder=0)
    for (label, records), style in zip(groups.items(), cycle(STYLES), strict=False):
        ece = np.mean([record["calibration"]["ece"] for record in records])
        axes.plot(
            *_pooled(records), label=f"{label}, error {ece:.3f}", linewidth=1.6, markersize=4.5, **style
        )
    axes.set_xlabel(f"confidence, % (bins of {ENOUGH} images or more)")
    axes.set_ylabel("accuracy, %")
    lowest = min(axes.dataLim.x0, axes.dataLim.y0) - 5
    axes.set(xlim=(lowest, 102), ylim=(lowest, 102))
    tidy(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower right", handlelength=3)
    return figure


def landscape(groups: Groups) -> Figure:
    figure = Figure(figsize=(7.5, 1.6 + 0.35 * len(groups)), layout="constrained")
    for axes, (key, text) in zip(figure.subplots(1, 2, sharey=True), QUANTITIES.items(), strict=True):
        values = [[record["landscape"][key] for record in records] for records in groups.values()]
        bars = [np.std(v, ddof=1) if len(v) > 1 else 0 for v in values]
        means = [np.mean(v) for v in values]
        axes.errorbar(means, range(len(groups)), xerr=bars, fmt="o", color="black", capsize=3)
        axes.set_yticks(range(len(groups)), list(groups))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        ends = [0, *(m + side * b for m, b in zip(means, bars, strict=True) for side in (-1, 1))]
        margin = 0.08 * (max(ends) - min(ends))
        axes.set_xlim(min(ends) - margin * (min(ends) < 0), max(ends) + margin)
        axes.set_xlabel(text)
        tidy(axes)
    if title := intervals(groups):
        figure.suptitle(title, fontsize=9)
    return figure


def _pooled(records: list[Record]) -> tuple[list[float], list[float]]:
    parts = [record["calibration"] for record in records]
    counts = np.array([part["counts"] for part in parts], dtype=float)
    enough = counts.sum(0) >= ENOUGH
    sums = {
        key: (np.array([[v or 0 for v in part[key]] for part in parts]) * counts).sum(0)
        for key in ("confidence", "accuracy")
    }
    means = {key: (100 * total[enough] / counts.sum(0)[enough]).tolist() for key, total in sums.items()}
    return means["confidence"], means["accuracy"]
