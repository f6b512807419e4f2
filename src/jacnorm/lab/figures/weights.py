"""Accuracy and σ over λ, a line per method, with a ring around the largest λ that does no harm."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ..looks import looks
from .common import tidy

FAR = 10.0  # points below the best: what is lower would press the others together, and is an arrow
RING = {"marker": "o", "markersize": 13, "fillstyle": "none", "markeredgewidth": 1.6, "linestyle": ""}


def over_weights(frame: pd.DataFrame) -> Figure:
    """Of a frame as `reproduce.weights.by_weight` makes it."""
    figure = Figure(figsize=(6.5, 5.6), layout="constrained")
    top, bottom = axes = figure.subplots(2, 1, sharex=True)
    methods = list(dict.fromkeys(frame["method"]))
    style = dict(zip(methods, looks(methods), strict=True))
    for one, (name, title) in zip(axes, {"last": "accuracy, %", "sigma": "σ"}.items(), strict=True):
        handles = {
            method: _line(one, frame[frame["method"] == method], name, style[method]) for method in style
        }
        if len(bare := frame[frame["weight"] == 0]):
            handles["no regularizer"] = _without(one, bare, name, style)
        one.set_ylabel(title)
        tidy(one)
    _scales(bottom, frame)
    _leave_out(top, frame, style)
    if frame["marked"].any():
        (handles["largest λ that does no harm"],) = top.plot([], [], color="0.2", **{**RING, "markersize": 9})
    figure.legend(handles.values(), handles, frameon=False, fontsize=9, ncols=3, loc="outside upper center")
    return figure


def _scales(axes: Any, frame: pd.DataFrame) -> None:
    """Shared for λ; that of σ is logarithmic where it spans a power of ten, and else begins at zero."""
    weights, sigma = sorted(frame["weight"][frame["weight"] > 0].unique()), frame["sigma"]
    axes.set(xscale="log", xlabel="λ")
    axes.set_xticks(weights, [f"{weight:g}" for weight in weights])
    axes.minorticks_off()
    if 0 < 10 * sigma.min() <= sigma.max():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)


def _line(axes: Any, of: pd.DataFrame, name: str, look: dict[str, Any]) -> Any:
    """What stands for it in a legend."""
    of = of[of["weight"] > 0]
    style = {"linewidth": 1.6, "markersize": 4.5, "capsize": 3, "elinewidth": 0.8, **look}
    drawn = axes.errorbar(of["weight"], of[name], yerr=of[f"{name}_sd"].fillna(0.0), **style)
    marked = of[of["marked"]]
    axes.plot(marked["weight"], marked[name], color=look["color"], zorder=5, **RING)
    return drawn


def _without(axes: Any, bare: pd.DataFrame, name: str, style: dict[str, dict[str, Any]]) -> Any:
    """No regularizer, which is the same at any λ: one line for all methods with the same settings."""
    together = bare[name].nunique() == 1
    for row in bare[:1].to_dict("records") if together else bare.to_dict("records"):
        color = looks(["none"])[0]["color"] if together else style[row["method"]]["color"]
        line = axes.axhline(row[name], color=color, linestyle=":", linewidth=1.2)
        if pd.notna(sd := row[f"{name}_sd"]):
            axes.axhspan(row[name] - sd, row[name] + sd, color=color, alpha=0.1, linewidth=0)
    return line


def _leave_out(axes: Any, frame: pd.DataFrame, style: dict[str, dict[str, Any]]) -> None:
    """An arrow at the lower edge for each accuracy that is far below all others."""
    best = frame.loc[frame["last"].idxmax()]
    low = frame[frame["last"] < best["last"] - FAR]
    if low.empty:
        return
    above = 0.0 if pd.isna(best["last_sd"]) else best["last_sd"]
    axes.set_ylim(best["last"] - FAR, best["last"] + above + 0.5)
    for row in low.to_dict("records"):
        beside = 9 * (list(style).index(row["method"]) - len(style) / 2)
        place = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points", "ha": "center"}
        look = {"color": style[row["method"]]["color"], "fontsize": 14, "fontweight": "bold"}
        axes.annotate("↓", (row["weight"], 0), (beside, 3), **place, **look)
