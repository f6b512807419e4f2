"""Three distances to the decision boundary side by side, figure 4 of the paper and what it overestimates."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from ..evaluate.compare import Groups, Record
from .common import tidy

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "first_order": ("first order, margin/‖∇margin‖", {"facecolor": "white", "hatch": ""}),
    "attack": ("minimum-norm attack", {"facecolor": "0.8", "hatch": "////"}),
    "sampled": ("random directions", {"facecolor": "0.45", "hatch": ""}),
}
WIDTH = 0.24


def boundary(groups: Groups) -> Figure:
    """Boxes are quartiles, whiskers 5 % and 95 % of the points; several networks of a group are pooled.

    A row a method, so that it is no wider for more of them and a phone can show it.
    """
    figure = Figure(figsize=(5.5, 1.9 + 0.62 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for i, (key, (_, look)) in enumerate(KINDS.items()):
        axes.boxplot(
            [_pooled(records, key) for records in groups.values()],
            positions=[g + (i - 1) * 1.2 * WIDTH for g in range(len(groups))],
            widths=WIDTH,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            orientation="horizontal",
            boxprops={**look, "edgecolor": "black", "linewidth": 0.9},
            medianprops={"color": "black", "linewidth": 1.8},
        )
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.4, -0.6)  # the first on top
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("distance to the boundary, 2-norm in pixels")
    tidy(axes)
    axes.grid(visible=False, axis="y")
    first = next(iter(groups.values()))[0]["boundary"]
    names = [text for text, _ in KINDS.values()]
    names[-1] = f"{first['directions']} random directions"
    patches = [
        Patch(**look, edgecolor="black", label=n) for n, (_, look) in zip(names, KINDS.values(), strict=True)
    ]
    title = f"{_points(groups)} points a network; those misclassified are left out"
    figure.legend(
        handles=patches,
        frameon=False,
        fontsize=9,
        title=title,
        title_fontsize=8,
        ncols=1,
        loc="outside upper center",
    )
    return figure


def _points(groups: Groups) -> str:
    """How many distances; a summary has their number alone."""
    found = [r["boundary"]["points"] for records in groups.values() for r in records]
    counts = sorted({points if isinstance(points, int) else len(points) for points in found})
    return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _pooled(records: list[Record], key: str) -> list[float]:
    return [d for record in records for d in record["boundary"][key] if d is not None]
