"""Methods side by side: a row, a box or a line for each, over its networks, its epochs or its λ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from ..evaluate.common import wilson
from ..looks import looks
from ..statistics import interquartile_mean, interval
from .panels import ATTACKS, BARS, by_method, counted, figure_with_axes, intervals, span, tidy

BOXES: dict[str, tuple[str, dict[str, Any]]] = {
    "first_order": ("first order, margin/‖∇margin‖", {"facecolor": "white", "hatch": ""}),
    "attack": ("minimum-norm attack", {"facecolor": "0.8", "hatch": "////"}),
    "sampled": ("random directions", {"facecolor": "0.45", "hatch": ""}),
}
BOX = 0.24  # its width
ENOUGH = 10  # images, for a bin to be drawn
FEWEST = 3  # runs, for a band
ACROSS = 2  # panels beside each other
SLOPES = {"slope": "slope, mean ‖∇ₓ loss‖", "curvature": "curvature along an attack's step"}
PIXELS = "median, 2-norm in pixels"
AXES = {  # of a quantity, its words and its unit
    "sampled": ("distance to the boundary in random directions", PIXELS),
    "attack": ("distance to the boundary by a minimum-norm attack", PIXELS),
    "first_order": ("distance to the boundary to first order", PIXELS),
    "noise": ("change in accuracy under white noise", "points"),
    **{key: (f"change in accuracy under {name}", "points") for key, name in ATTACKS.items()},
    **{f"{key}-worst": (f"accuracy under {name}", "%") for key, name in ATTACKS.items()},
    "judge": ("accuracy under four strong attacks", "%"),
}
FAR = 10.0  # points below the best: what is lower would press the others together, and is an arrow
RING = {"marker": "o", "markersize": 13, "fillstyle": "none", "markeredgewidth": 1.6, "linestyle": ""}


def _rows(axes: Any, names: list[str], above: float = 0.5) -> None:
    """A row for each name, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 1 + above, -above)


def accuracy(found: pd.DataFrame) -> Figure:
    """Table 1 as points with bars of ± one standard deviation: ours, and the paper's if there are any."""
    found = found[found["mean"].notna() | found["paper"].notna()]
    figure, axes = figure_with_axes(5.5, 1.3 + 0.42 * len(found))
    with_paper = bool(found["paper"].notna().any())
    apart = 0.12 * with_paper
    drawn = [("mean", "sd", -apart, "o", "full"), ("paper", "paper_sd", apart, "s", "none")]
    for (i, row), look in zip(enumerate(found.to_dict("records")), looks(found.index), strict=True):
        for mean, sd, shift, marker, fill in drawn:
            if pd.notna(row[mean]):
                bar = 0.0 if pd.isna(row[sd]) else row[sd]
                style = {"fillstyle": fill, "color": look["color"], "capsize": 3, "markersize": 5}
                axes.errorbar(row[mean], i + shift, xerr=bar, fmt=marker, **style)
    _rows(axes, list(found.index))
    axes.set_xlabel("test accuracy, %")
    tidy(axes)
    if with_paper:
        for text, (*_, marker, fill) in zip(("ours", "paper"), drawn, strict=True):
            axes.plot([], [], marker, fillstyle=fill, color="black", markersize=5, label=text)
        figure.legend(frameon=False, fontsize=9, ncols=2, loc="outside upper center")
    return figure


def relation(x: pd.DataFrame, y: pd.DataFrame, titles: tuple[str, str]) -> Figure:
    """A point for each network; of frames with a row for each seed and a column for each method."""
    figure, axes = figure_with_axes(5.5, 4.4)
    for label, style in zip(y, looks(y), strict=True):
        look = {"color": style["color"], "markersize": 6, "alpha": 0.85}
        axes.plot(x[label], y[label], style["marker"], label=label, **look)
    for name, set_label in zip(titles, (axes.set_xlabel, axes.set_ylabel), strict=True):
        set_label(", ".join(AXES.get(name, (name,))), fontsize=9)
    tidy(axes)
    figure.legend(frameon=False, fontsize=9, ncols=3, loc="outside upper center")
    return figure


def caption(x: str, y: str) -> str:
    """
    >>> caption("first_order", "pgd-worst")
    'Accuracy under PGD against distance to the boundary to first order, a point a network'
    """
    against = f"{AXES.get(y, (y,))[0]} against {AXES.get(x, (x,))[0]}, a point a network"
    return against[0].upper() + against[1:]


def boundary(frame: pd.DataFrame) -> Figure:
    """Three distances to the boundary, figure 4 of the paper. Boxes are quartiles, whiskers 5 % and 95 % of
    the points; several networks of a method are pooled. A phone can show it, however many methods there are.
    """
    parts = by_method(frame, "boundary")
    figure, axes = figure_with_axes(5.5, 1.9 + 0.62 * len(parts))
    for i, (key, (_, look)) in enumerate(BOXES.items()):
        axes.boxplot(
            [[d for part in of for d in part[key] if d is not None] for of in parts.values()],
            positions=[g + (i - 1) * 1.2 * BOX for g in range(len(parts))],
            widths=BOX,
            whis=(5, 95),
            showfliers=False,
            patch_artist=True,
            orientation="horizontal",
            boxprops={**look, "edgecolor": "black", "linewidth": 0.9},
            medianprops={"color": "black", "linewidth": 1.8},
        )
    _rows(axes, list(parts), 0.6)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("distance to the boundary, 2-norm in pixels")
    tidy(axes)
    axes.grid(visible=False, axis="y")
    _legend_of_boxes(figure, [part for of in parts.values() for part in of])
    return figure


def _legend_of_boxes(figure: Figure, parts: list[dict[str, Any]]) -> None:
    names = {key: text for key, (text, _) in BOXES.items()}
    names["sampled"] = f"{parts[0]['directions']} random directions"
    # A summary has the number of points alone.
    counts = pd.Series([p["points"] if isinstance(p["points"], int) else len(p["points"]) for p in parts])
    figure.legend(
        handles=[Patch(**BOXES[key][1], edgecolor="black", label=text) for key, text in names.items()],
        frameon=False,
        fontsize=9,
        title=f"{span(counts)} points a network; those misclassified are left out",
        title_fontsize=8,
        ncols=1,
        loc="outside upper center",
    )


def landscape(frame: pd.DataFrame) -> Figure:
    """The slope of the loss and its curvature, with bars of ± one standard deviation."""
    records = pd.DataFrame(list(frame["record"].map(lambda record: record["landscape"])))
    groups = records.groupby(frame["method"], observed=True)
    names = [str(name) for name in groups.groups]
    figure, both = figure_with_axes(7.5, 1.6 + 0.35 * len(names), 1, 2, sharey=True)
    for axes, (key, text) in zip(both, SLOPES.items(), strict=True):
        means, bars = groups[key].mean(), groups[key].std().fillna(0)
        for i, (name, look) in enumerate(zip(names, looks(names), strict=True)):
            axes.errorbar(means[name], i, xerr=bars[name], fmt="o", color=look["color"], capsize=3)
        _rows(axes, names)
        low, high = min(0, *(means - bars)), max(0, *(means + bars))
        margin = 0.08 * (high - low)
        axes.set_xlim(low - margin * (low < 0), high + margin)
        axes.set_xlabel(text)
        tidy(axes)
    title = counted("Loss landscape", frame["record"].iloc[0]["landscape"])
    figure.suptitle("; ".join(filter(None, [title, intervals(frame, single=None)])), fontsize=9)
    return figure


def calibration(frame: pd.DataFrame) -> Figure:
    """Reliability: the networks of a method are pooled."""
    parts = by_method(frame, "calibration")
    figure, axes = figure_with_axes(5, 4.5)
    axes.plot((0, 100), (0, 100), color="0.6", linewidth=1, zorder=0)
    lowest = 100.0
    for (label, of), look in zip(parts.items(), looks(parts), strict=True):
        ece = np.mean([part["ece"] for part in of])
        sure, right, low, high = _pooled(of)
        ends = np.abs(np.stack([low, high]) - right)
        style = {**BARS, "capsize": 2, "elinewidth": 0.7, **look}
        axes.errorbar(sure, right, ends, label=f"{label}, error {ece:.3f}", clip_on=False, **style)
        lowest = min([lowest, *sure, *low])
    axes.set_xlabel(f"confidence, % (bins of {ENOUGH} images or more)")
    axes.set_ylabel("accuracy, %")
    axes.set(xlim=(max(0, lowest - 5), 100), ylim=(max(0, lowest - 5), 100))
    axes.set_title(counted("Calibration", next(iter(parts.values()))[0]) + "; 95 % intervals", fontsize=9)
    tidy(axes)
    axes.legend(frameon=False, fontsize=9, loc="lower right", handlelength=3)
    return figure


def _pooled(parts: list[dict[str, Any]]) -> list[Any]:
    """Confidence, accuracy and its interval in percent, of the bins with enough images.

    The interval is that of the images of one network: all networks saw the same.
    """
    columns = ["counts", "confidence", "accuracy"]
    bins = pd.concat([pd.DataFrame({c: part[c] for c in columns}, dtype=float).fillna(0) for part in parts])
    sums = bins[columns[1:]].mul(bins["counts"], axis=0).assign(counts=bins["counts"]).groupby(level=0).sum()
    sums = sums[sums["counts"] >= ENOUGH]
    sure, right = (sums[column] / sums["counts"] for column in columns[1:])
    ends = wilson(right, np.maximum(sums["counts"] / len(parts), 1))
    return [100 * of.to_numpy() for of in (sure, right, *ends)]


def curves(frame: pd.DataFrame) -> Figure:
    """How runs went: a frame with `method`, `epoch` and `value`, a row for each run and epoch."""
    figure, axes = figure_with_axes(6.5, 4.2)
    _curves(axes, frame)
    return figure


def panels(frames: Mapping[str, pd.DataFrame]) -> Figure:
    """Several frames of curves, by their titles."""
    rows = -(-len(frames) // ACROSS)
    figure, grid = figure_with_axes(6 * ACROSS, 4 * rows, rows, ACROSS, squeeze=False)
    grid = list(grid.flat)
    for axes, (title, frame) in zip(grid, frames.items(), strict=False):
        _curves(axes, frame)
        axes.set_title(title, fontsize=11)
    for axes in grid[len(frames) :]:
        axes.set_axis_off()
    return figure


def _curves(axes: Any, frame: pd.DataFrame) -> None:
    """The interquartile mean over the runs of each method, in a band."""
    groups = {str(name): of for name, of in frame.groupby("method", observed=True)}
    without_strength = looks(name.partition(" ")[0] for name in groups)
    for (method, of), style in zip(groups.items(), without_strength, strict=True):
        values = {epoch: one.to_numpy(dtype=float) for epoch, one in of.groupby("epoch")["value"]}
        look = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 1.6}
        axes.plot(list(values), list(map(interquartile_mean, values.values())), label=method, **look)
        bands = [interval([v]) if len(v) >= FEWEST else (np.nan, np.nan) for v in values.values()]
        low, high = np.array(bands).T
        axes.fill_between(list(values), low, high, color=style["color"], alpha=0.12, linewidth=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel(frame.attrs["quantity"])
    axes.legend(frameon=False, fontsize=9)
    tidy(axes)


def over_weights(frame: pd.DataFrame) -> Figure:
    """Of a frame as `reproduce.weights.by_weight` makes it."""
    figure, axes = figure_with_axes(6.5, 5.6, 2, 1, sharex=True)
    methods = list(dict.fromkeys(frame["method"]))
    style = dict(zip(methods, looks(methods), strict=True))
    for one, (name, title) in zip(axes, {"last": "accuracy, %", "sigma": "σ"}.items(), strict=True):
        handles = {of: _line(one, frame[frame["method"] == of], name, look) for of, look in style.items()}
        if len(bare := frame[frame["weight"] == 0]):
            handles["no regularizer"] = _without(one, bare, name, style)
        one.set_ylabel(title)
        tidy(one)
    _scales(axes[1], frame)
    _leave_out(axes[0], frame, style)
    if frame["marked"].any():
        (handles["largest λ that does no harm"],) = axes[0].plot(
            [], [], color="0.2", **{**RING, "markersize": 9}
        )
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
    drawn = axes.errorbar(of["weight"], of[name], yerr=of[f"{name}_sd"].fillna(0.0), **BARS, **look)
    marked = of[of["marked"]]
    axes.plot(marked["weight"], marked[name], color=look["color"], zorder=5, **RING)
    return drawn


def _without(axes: Any, bare: pd.DataFrame, name: str, style: dict[str, dict[str, Any]]) -> Any:
    """No regularizer, which is the same at any λ: one line for all methods with the same settings."""
    together = bare[name].nunique() == 1
    for row in bare[: 1 if together else None].to_dict("records"):
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
