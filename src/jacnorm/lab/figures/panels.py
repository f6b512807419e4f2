"""Panels of figures 3 and 5 of the paper: lines with error bars for each method, legends, axes.

A panel is a function from axes and a frame of networks (`reproduce.measurement.as_frame`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..evaluate.common import wilson
from ..looks import looks

OVER_IMAGES = "95 % intervals over the images"
ATTACKS = {"pgd": "PGD", "tpgd": "TPGD", "square": "Square"}
STRONG = {"apgd-ce": "APGD-CE", "apgd-t": "APGD-T", "fmn": "FMN", "square": "Square"}
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
ESTIMATES = {"random": "Spectral", "warm": "Spectral-warm", "lanczos": "Lanczos"}
LOOKS = {"random": "spectral", "warm": "spectral-warm"}  # the methods that begin so
APART = 0.07  # of the distance between two strengths
FLOOR = 1e-5  # errors below it are mostly rounding, and not shown
ABOVE: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2}  # the axes
BARS: dict[str, Any] = {"linewidth": 1.6, "markersize": 4.5, "capsize": 3, "elinewidth": 0.8}

Panel = Callable[[Any, pd.DataFrame], None]


def figure_with_axes(width: float, height: float, *grid: int, **options: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(*grid, **options)


def alone(
    panel: Callable[[Any, Any], None], data: Any, width: float = 5.5, height: float = 4.0, **legend: Any
) -> Figure:
    """A panel as a figure of its own, with a legend unless the panel has one."""
    figure, axes = figure_with_axes(width, height)
    panel(axes, data)
    if axes.get_legend() is None:
        add_legend(axes, data, **legend)
    return figure


def robustness(frame: pd.DataFrame) -> Figure:
    """Everything of figure 3 in one picture, with one legend."""
    draws: list[Panel] = [noise, *(partial(attack, name=name, measure="last") for name in attacks_in(frame))]
    draws += [strong_attacks] if is_judged(frame) else []
    figure, grid = figure_with_axes(11, 6.4, 2, 3)
    panels = list(grid.flat)
    for axes, draw in zip(panels, draws, strict=False):
        draw(axes, frame)
    for axes in panels[len(draws) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    panels[-1].legend(handles, labels, frameon=False, fontsize=10, handlelength=3, loc="center")
    return figure


def attacks(frame: pd.DataFrame, change: bool = False) -> Figure:
    """What any iterate finds, side by side."""
    names = attacks_in(frame)
    width = max(5.5, 3.6 * len(names))
    figure, (panels,) = figure_with_axes(width, 4, 1, len(names), squeeze=False, sharey=True)
    for axes, name in zip(panels, names, strict=True):
        attack(axes, frame, name, "worst", change)
        axes.label_outer()
    add_legend(panels[0], frame, single=None if change else OVER_IMAGES, loc="lower left")
    return figure


def time_and_error(frame: pd.DataFrame, of: dict[str, pd.DataFrame]) -> Figure:
    """Side by side, each estimate on networks of its own."""
    figure, (left, right) = figure_with_axes(10, 4.4, 1, 2)
    times(left, frame)
    errors(right, of)
    return figure


def attacks_in(frame: pd.DataFrame) -> list[str]:
    return list(frame["record"].iloc[0]["attacks"])


def is_judged(frame: pd.DataFrame) -> bool:
    return all(record.get("judge") for record in frame["record"])


def noise(axes: Any, frame: pd.DataFrame, change: bool = False) -> None:
    """Accuracy as noise grows; with `change` its difference to that without noise."""
    parts = by_method(frame, "noise")
    first = _first(parts)
    left = {of: [(p["clean"], [p["clean"] - d for d in p["drop"]]) for p in ps] for of, ps in parts.items()}
    _accuracies(axes, left, first, first["variances"], change, apart=APART / 20 * max(first["variances"]))
    axes.set_xlabel("variance of the noise on each pixel")
    axes.set_title(counted("White noise", first), fontsize=9)


def attack(axes: Any, frame: pd.DataFrame, name: str, measure: str, change: bool = False) -> None:
    """`measure`: worst, or last for the paper's way."""
    parts = {of: [part[name] for part in found] for of, found in by_method(frame, "attacks").items()}
    first = _first(parts)
    positions = range(len(first["iterations"]))  # evenly, since they grow about geometrically from 0
    left = {of: [(part["clean"], part[measure][-1]) for part in found] for of, found in parts.items()}
    _accuracies(axes, left, first, positions, change)
    axes.set_xticks(positions, [str(s) for s in first["iterations"]])
    axes.set_xlabel("queries" if name == "square" else "iterations")
    title = f"{ATTACKS[name]}, ε = {255 * first['epsilons'][-1]:.4g}/255"
    axes.set_title(counted(title, first), fontsize=9)


def strong_attacks(axes: Any, frame: pd.DataFrame, change: bool = False) -> None:
    parts = by_method(frame, "judge")
    first = _first(parts)
    names = ["clean", *(f"+ {STRONG[a]}" for a in first["attacks"])]
    left = {of: [(p["clean"], (p["clean"], *p["robust"])) for p in found] for of, found in parts.items()}
    _accuracies(axes, left, first, range(len(names)), change)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    title = f"Four strong attacks together, ε = {255 * first['epsilon']:.4g}/255"
    axes.set_title(counted(title, first), fontsize=9)


def _first(parts: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The settings of a measurement are the same for all networks."""
    return next(iter(parts.values()))[0]


def _accuracies(
    axes: Any,
    left: Mapping[str, Any],
    first: dict[str, Any],
    x: Sequence[float],
    change: bool,
    apart: float = APART,
) -> None:
    """Clean accuracy and what is left of it, in percent, or in points below the clean one.

    Bars of a single network say where its accuracy lies. Those of a change would be others, and nobody has
    counted them.
    """
    values = {
        of: [[100 * (p - clean * change) for p in rest] for clean, rest in ns] for of, ns in left.items()
    }
    lines(axes, x, values, apart=apart, images=None if change else first.get("images"))
    if not change:
        axes.set_ylim(0, 102)
    axes.set_ylabel("change in accuracy, points" if change else "accuracy, %")
    tidy(axes)


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
    values = {key: [part[key] for part in parts if part[key] is not None] for key, parts in found.items()}
    there = [key for key in ESTIMATES if values.get(key)]
    rounds = next(part["iterations"] for parts in found.values() for part in parts)
    like = [LOOKS.get(key, key) for key in there]
    lines(axes, rounds, {ESTIMATES[key]: values[key] for key in there}, like=like)
    if values.get("bound"):
        mean = sum(values["bound"]) / len(values["bound"])
        axes.axhline(mean, color="black", linewidth=1, label="product of the layers' norms")
    axes.set_yscale("log")
    axes.set_ylim(bottom=FLOOR)
    axes.set_xticks(rounds)
    axes.set_xlabel("rounds (a product with J and one with Jᵀ)")
    axes.set_ylabel("mean relative error of σ")
    tidy(axes)
    axes.legend(frameon=False, fontsize=9, **ABOVE)


def by_method(frame: pd.DataFrame, part: str) -> dict[str, list[dict[str, Any]]]:
    """A part of each network's record, method by method."""
    groups = frame.groupby("method", observed=True)["record"]
    return {str(name): [record[part] for record in records] for name, records in groups}


def lines(
    axes: Any,
    x: Sequence[float],
    curves: dict[str, Any],
    *,
    apart: float = 0.0,
    like: Iterable[str] | None = None,
    images: int | None = None,
) -> None:
    """A line for each method from an array (networks, points), with bars of ± one standard deviation.

    `apart` shifts each line to the right of the one before, so that equal lines do not hide each other.
    `like` names the methods whose look is used, if the names are others. The bars of a single network are
    the 95 % intervals of shares in percent, if they were counted on so many images.
    """
    for i, ((name, values), style) in enumerate(zip(curves.items(), looks(like or curves), strict=True)):
        array = np.asarray(values, dtype=float)
        bars = array.std(0, ddof=1) if len(array) > 1 else None
        if bars is None and images is not None:
            bars = np.abs(100 * np.stack(wilson(array[0] / 100, images)) - array[0])
        shifted = np.asarray(x) + apart * (i - (len(curves) - 1) / 2)
        axes.errorbar(shifted, array.mean(0), bars, label=name, **BARS, **style)


def tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def add_legend(axes: Any, frame: pd.DataFrame, single: str | None = OVER_IMAGES, **options: Any) -> None:
    look = {"frameon": False, "title_fontsize": 8, "fontsize": 9, "handlelength": 3}
    axes.legend(title=intervals(frame, single), **look, **options)


def intervals(frame: pd.DataFrame, single: str | None) -> str | None:
    """What the bars mean; `single` is for one network per method."""
    counts = frame.groupby("method", observed=True).size()
    return single if counts.max() == 1 else f"mean ± s.d. over {span(counts)} networks"


def counted(title: str, part: dict[str, Any]) -> str:
    """The title, with the number of images if the record has it."""
    return f"{title}, {part['images']:,} images" if "images" in part else title


def span(counts: pd.Series) -> str:
    low, high = counts.min(), counts.max()
    return f"{low}" if low == high else f"{low} to {high}"
