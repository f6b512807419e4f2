"""One quantity against another: does the one tell the other?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from .common import styles, tidy

PIXELS = "median, 2-norm in pixels"
AXES = {  # of a quantity, its words and its unit
    "sampled": ("distance to the boundary in random directions", PIXELS),
    "attack": ("distance to the boundary by a minimum-norm attack", PIXELS),
    "first_order": ("distance to the boundary to first order", PIXELS),
    "noise": ("change in accuracy under white noise", "points"),
    "pgd": ("change in accuracy under PGD", "points"),
    "tpgd": ("change in accuracy under TPGD", "points"),
    "square": ("change in accuracy under Square", "points"),
    "pgd-worst": ("accuracy under PGD", "%"),
    "tpgd-worst": ("accuracy under TPGD", "%"),
    "square-worst": ("accuracy under Square", "%"),
    "judge": ("accuracy under four strong attacks", "%"),
}


def caption(x: str, y: str) -> str:
    """
    >>> caption("first_order", "pgd-worst")
    'Accuracy under PGD against distance to the boundary to first order, a point a network'
    """
    against = f"{_words(y)} against {_words(x)}, a point a network"
    return against[0].upper() + against[1:]


def relation(points: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str) -> Figure:
    """A point a network, a look a method."""
    figure = Figure(figsize=(5.5, 4.4), layout="constrained")
    axes = figure.subplots()
    for (label, of), style in zip(points.items(), styles(points), strict=True):
        look = {"color": style["color"], "marker": style["marker"]}
        axes.plot(*zip(*of, strict=True), label=label, linestyle="", markersize=6, alpha=0.85, **look)
    axes.set_xlabel(_axis(x), fontsize=9)
    axes.set_ylabel(_axis(y), fontsize=9)
    tidy(axes)
    figure.legend(frameon=False, fontsize=9, ncols=3, loc="outside upper center")
    return figure


def _words(quantity: str) -> str:
    return AXES[quantity][0] if quantity in AXES else quantity


def _axis(quantity: str) -> str:
    return ", ".join(AXES[quantity]) if quantity in AXES else quantity
