"""Time and error, figure 5 of the paper."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ..evaluate.compare import Groups, Record
from .common import legend, lines, tidy

TIMES = {
    "forward": "forward pass",
    "plain": "plain step",
    "spectral-bound": "Spectral-Bound",
    "frobenius": "Frobenius",
    "spectral": "Spectral, random start",
    "spectral-warm": "Spectral, stored start",
    "analytic": "analytical",
    "analytic-svd": "analytical, as in the paper",
}
ESTIMATES = {
    "random": "power iteration, random start",
    "warm": "power iteration, stored start",
    "lanczos": "Lanczos",
}
FLOOR = 1e-5  # below it is mostly rounding, and not shown


def cost(groups: Groups) -> Figure:
    """All networks together: the cost belongs to the architecture."""
    records = [record for group in groups.values() for record in group]
    return both(groups, dict.fromkeys((*ESTIMATES, "bound"), records))


def both(groups: Groups, of: dict[str, list[Record]]) -> Figure:
    """Side by side, each estimate on networks of its own."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _times(left, [record for group in groups.values() for record in group])
    _errors(right, of)
    return figure


def times(groups: Groups) -> Figure:
    """The left half alone."""
    figure = Figure(figsize=(5.5, 4.4), layout="constrained")
    _times(figure.subplots(), [record for group in groups.values() for record in group])
    return figure


def errors(of: dict[str, list[Record]]) -> Figure:
    """The right half alone, each estimate on networks of its own."""
    figure = Figure(figsize=(5.5, 4.4), layout="constrained")
    _errors(figure.subplots(), of)
    return figure


def _times(axes: Any, records: list[Record]) -> None:
    times = [record["cost"]["times"] for record in records]
    sizes = times[0]["batch_sizes"]
    lines(axes, sizes, {text: [t["ratio"][key] for t in times] for key, text in TIMES.items()})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("batch size")
    axes.set_ylabel("time per batch, plain step = 1")
    tidy(axes)
    legend(axes, {"all": records}, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)


def _errors(axes: Any, of: dict[str, list[Record]]) -> None:
    found = {key: [record["cost"]["estimation"] for record in records] for key, records in of.items()}
    curves = {
        text: [part[key] for part in found.get(key, ()) if part[key] is not None]
        for key, text in ESTIMATES.items()
    }
    rounds = next(part["iterations"] for parts in found.values() for part in parts)
    lines(axes, rounds, {text: values for text, values in curves.items() if values})
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
    axes.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
