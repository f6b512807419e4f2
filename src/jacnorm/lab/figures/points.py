"""Points with bars: a table as a picture, and one quantity against another."""

from __future__ import annotations

import pandas as pd
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


def accuracy(found: pd.DataFrame) -> Figure:
    """A row a method, the first on top; bars of ± one standard deviation; the paper's, if there are any."""
    found = found[found["mean"].notna() | found["paper"].notna()]
    figure = Figure(figsize=(5.5, 1.3 + 0.42 * len(found)), layout="constrained")
    axes = figure.subplots()
    with_paper = bool(found["paper"].notna().any())
    apart = 0.12 * with_paper
    looks = (
        ("mean", "sd", -apart, "ours", "#003f5c", "o"),
        ("paper", "paper_sd", apart, "paper", "#ef5675", "s"),
    )
    for mean, sd, shift, name, color, marker in looks[: 1 + with_paper]:
        rows = [i + shift for i, there in enumerate(found[mean].notna()) if there]
        points = found[found[mean].notna()]
        look = {"fmt": marker, "color": color, "capsize": 3, "markersize": 5}
        axes.errorbar(points[mean], rows, xerr=points[sd].fillna(0.0), label=name, **look)  # type: ignore[arg-type]
    axes.set_yticks(range(len(found)), list(found.index))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("test accuracy, %")
    tidy(axes)
    if with_paper:
        figure.legend(frameon=False, fontsize=9, ncols=2, loc="outside upper center")
    return figure


def relation(x: pd.DataFrame, y: pd.DataFrame, titles: tuple[str, str]) -> Figure:
    """A point a network, a look a method; of frames with a row a seed and a column a method."""
    figure = Figure(figsize=(5.5, 4.4), layout="constrained")
    axes = figure.subplots()
    for label, style in zip(y, styles(y), strict=True):
        look = {"color": style["color"], "marker": style["marker"]}
        axes.plot(x[label], y[label], label=label, linestyle="", markersize=6, alpha=0.85, **look)
    axes.set_xlabel(_axis(titles[0]), fontsize=9)
    axes.set_ylabel(_axis(titles[1]), fontsize=9)
    tidy(axes)
    figure.legend(frameon=False, fontsize=9, ncols=3, loc="outside upper center")
    return figure


def caption(x: str, y: str) -> str:
    """
    >>> caption("first_order", "pgd-worst")
    'Accuracy under PGD against distance to the boundary to first order, a point a network'
    """
    against = f"{_words(y)} against {_words(x)}, a point a network"
    return against[0].upper() + against[1:]


def _words(quantity: str) -> str:
    return AXES[quantity][0] if quantity in AXES else quantity


def _axis(quantity: str) -> str:
    return ", ".join(AXES[quantity]) if quantity in AXES else quantity
