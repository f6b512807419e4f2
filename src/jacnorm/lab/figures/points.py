"""Points with bars: a table as a picture, and one quantity against another."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ..looks import looks
from .common import tidy

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
    drawn = (("mean", "sd", -apart, "o", "full"), ("paper", "paper_sd", apart, "s", "none"))
    for (i, row), look in zip(enumerate(found.to_dict("records")), looks(found.index), strict=True):
        for mean, sd, shift, marker, fill in drawn:
            if pd.notna(row[mean]):
                bar = 0.0 if pd.isna(row[sd]) else row[sd]
                style = {
                    "fmt": marker,
                    "fillstyle": fill,
                    "color": look["color"],
                    "capsize": 3,
                    "markersize": 5,
                }
                axes.errorbar(row[mean], i + shift, xerr=bar, **style)
    axes.set_yticks(range(len(found)), list(found.index))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("test accuracy, %")
    tidy(axes)
    if with_paper:
        for text, marker, fill in (("ours", "o", "full"), ("paper", "s", "none")):
            axes.plot([], [], marker, fillstyle=fill, color="black", markersize=5, label=text)
        figure.legend(frameon=False, fontsize=9, ncols=2, loc="outside upper center")
    return figure


def relation(x: pd.DataFrame, y: pd.DataFrame, titles: tuple[str, str]) -> Figure:
    """A point a network, a look a method; of frames with a row a seed and a column a method."""
    figure = Figure(figsize=(5.5, 4.4), layout="constrained")
    axes = figure.subplots()
    for label, style in zip(y, looks(y), strict=True):
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
