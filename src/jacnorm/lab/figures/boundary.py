"""Three distances to the decision boundary side by side, figure 4 of the paper and what it overestimates."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from .common import by_method, span, tidy

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "first_order": ("first order, margin/‖∇margin‖", {"facecolor": "white", "hatch": ""}),
    "attack": ("minimum-norm attack", {"facecolor": "0.8", "hatch": "////"}),
    "sampled": ("random directions", {"facecolor": "0.45", "hatch": ""}),
}
WIDTH = 0.24


def boundary(frame: pd.DataFrame) -> Figure:
    """Boxes are quartiles, whiskers 5 % and 95 % of the points; several networks of a method are pooled.

    A row a method, so that it is no wider for more of them and a phone can show it.
    """
    parts = by_method(frame, lambda record: record["boundary"])
    figure = Figure(figsize=(5.5, 1.9 + 0.62 * len(parts)), layout="constrained")
    axes = figure.subplots()
    for i, (key, (_, look)) in enumerate(KINDS.items()):
        axes.boxplot(
            [[d for part in of for d in part[key] if d is not None] for of in parts.values()],
            positions=[g + (i - 1) * 1.2 * WIDTH for g in range(len(parts))],
            widths=WIDTH,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            orientation="horizontal",
            boxprops={**look, "edgecolor": "black", "linewidth": 0.9},
            medianprops={"color": "black", "linewidth": 1.8},
        )
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_ylim(len(parts) - 0.4, -0.6)  # the first on top
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("distance to the boundary, 2-norm in pixels")
    tidy(axes)
    axes.grid(visible=False, axis="y")
    _add_legend(figure, parts)
    return figure


def _add_legend(figure: Figure, parts: dict[str, list[Any]]) -> None:
    whole = [part for of in parts.values() for part in of]
    names = [text for text, _ in KINDS.values()]
    names[-1] = f"{whole[0]['directions']} random directions"
    patches = [
        Patch(**look, edgecolor="black", label=n) for n, (_, look) in zip(names, KINDS.values(), strict=True)
    ]
    # A summary has the number of points alone.
    counts = pd.Series([p["points"] if isinstance(p["points"], int) else len(p["points"]) for p in whole])
    figure.legend(
        handles=patches,
        frameon=False,
        fontsize=9,
        title=f"{span(counts)} points a network; those misclassified are left out",
        title_fontsize=8,
        ncols=1,
        loc="outside upper center",
    )
