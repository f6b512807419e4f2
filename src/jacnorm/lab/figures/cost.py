"""Time and error, figure 5 of the paper."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from .common import add_legend, lines, tidy

TIMES = {
    "forward": "forward pass",
    "plain": "plain step",
    "spectral-bound": "Spectral-Bound",
    "frobenius": "Frobenius",
    "spectral": "Spectral",
    "spectral-warm": "Spectral-warm",
    "analytic": "analytical",
    "analytic-svd": "analytical, as in the paper",
}
ESTIMATES = {
    "random": "Spectral",
    "warm": "Spectral-warm",
    "lanczos": "Lanczos",
}
LOOKS = {"random": "spectral", "warm": "spectral-warm"}  # the methods that begin so
ABOVE: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2}  # the axes
FLOOR = 1e-5  # below it is mostly rounding, and not shown


def both(frame: pd.DataFrame, of: dict[str, pd.DataFrame]) -> Figure:
    """Side by side, each estimate on networks of its own."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    times(left, frame)
    errors(right, of)
    return figure


def times(axes: Any, frame: pd.DataFrame) -> None:
    """All networks together: the cost belongs to the architecture."""
    found = [record["cost"]["times"] for record in frame["record"]]
    sizes = found[0]["batch_sizes"]
    lines(axes, sizes, {text: [t["ratio"][key] for t in found] for key, text in TIMES.items()}, like=TIMES)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("batch size")
    axes.set_ylabel("time per batch, plain step = 1")
    tidy(axes)
    add_legend(axes, frame.assign(method="all"), single=None, **ABOVE)


def errors(axes: Any, of: dict[str, pd.DataFrame]) -> None:
    """By the estimate's name, of the networks that it is measured on."""
    found = {key: [record["cost"]["estimation"] for record in frame["record"]] for key, frame in of.items()}
    curves = {key: [part[key] for part in found.get(key, ()) if part[key] is not None] for key in ESTIMATES}
    there = {key: values for key, values in curves.items() if values}
    rounds = next(part["iterations"] for parts in found.values() for part in parts)
    like = [LOOKS.get(key, key) for key in there]
    lines(axes, rounds, {ESTIMATES[key]: values for key, values in there.items()}, like=like)
    bounds = [part["bound"] for part in found.get("bound", ()) if part["bound"] is not None]
    if bounds:
        mean = sum(bounds) / len(bounds)
        axes.axhline(mean, color="black", linewidth=1, label="product of the layers' norms")
    axes.set_yscale("log")
    axes.set_ylim(bottom=FLOOR)
    axes.set_xticks(rounds)
    axes.set_xlabel("rounds (a product with J and one with Jᵀ)")
    axes.set_ylabel("mean relative error of σ")
    tidy(axes)
    axes.legend(frameon=False, fontsize=9, **ABOVE)
