"""Accuracy under noise and attacks, figure 3 of the paper, and what four stronger attacks leave of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from .common import OVER_IMAGES, Panel, add_legend, by_method, counted, lines, over_images, tidy

TITLES = {"pgd": "PGD", "tpgd": "TPGD", "square": "Square"}
APART = 0.07  # of the distance between two strengths
STRONG = {"apgd-ce": "APGD-CE", "apgd-t": "APGD-T", "fmn": "FMN", "square": "Square"}


def robustness(frame: pd.DataFrame) -> Figure:
    """Everything in one picture, with one legend."""
    draws: list[Panel] = [noise, *(partial(attack, name=name, measure="last") for name in attacks_in(frame))]
    draws += [strong_attacks] if is_judged(frame) else []
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels: list[Any] = list(figure.subplots(2, 3).flat)
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
    figure = Figure(figsize=(max(5.5, 3.6 * len(names)), 4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        attack(axes, frame, name, "worst", change)
        axes.label_outer()
    add_legend(panels[0], frame, single=None if change else OVER_IMAGES, loc="lower left")
    return figure


def attacks_in(frame: pd.DataFrame) -> list[str]:
    return list(frame["record"].iloc[0]["attacks"])


def is_judged(frame: pd.DataFrame) -> bool:
    return all(record.get("judge") for record in frame["record"])


def noise(axes: Any, frame: pd.DataFrame, change: bool = False) -> None:
    """Accuracy as noise grows; with `change` its difference to that without noise."""
    first = frame["record"].iloc[0]["noise"]
    x = first["variances"]
    values = by_method(frame, lambda r: _accuracy(r["noise"]["clean"], _left(r["noise"]), change))
    lines(axes, x, values, apart=APART / 20 * max(x), bars=_bars(first, change))
    axes.set_xlabel("variance of the noise on each pixel")
    _finish(axes, counted("White noise", first), change)


def attack(axes: Any, frame: pd.DataFrame, name: str, measure: str, change: bool = False) -> None:
    """`measure`: worst, or last for the paper's way."""
    first = frame["record"].iloc[0]["attacks"][name]
    values = by_method(
        frame,
        lambda r: _accuracy(r["attacks"][name]["clean"], r["attacks"][name][measure][-1], change),
    )
    positions = range(len(first["iterations"]))  # evenly, since they grow about geometrically from 0
    lines(axes, positions, values, apart=APART, bars=_bars(first, change))
    axes.set_xticks(positions, [str(s) for s in first["iterations"]])
    axes.set_xlabel("queries" if name == "square" else "iterations")
    _finish(axes, counted(f"{TITLES[name]}, ε = {255 * first['epsilons'][-1]:.4g}/255", first), change)


def strong_attacks(axes: Any, frame: pd.DataFrame, change: bool = False) -> None:
    first = frame["record"].iloc[0]["judge"]
    values = by_method(
        frame,
        lambda r: _accuracy(r["judge"]["clean"], (r["judge"]["clean"], *r["judge"]["robust"]), change),
    )
    names = ["clean", *(f"+ {STRONG[a]}" for a in first["attacks"])]
    lines(axes, range(len(names)), values, apart=APART, bars=_bars(first, change))
    axes.set_xticks(range(len(names)), names, fontsize=8)
    title = f"Four strong attacks together, ε = {255 * first['epsilon']:.4g}/255"
    _finish(axes, counted(title, first), change)


def _left(noise: dict[str, Any]) -> list[float]:
    return [noise["clean"] - drop for drop in noise["drop"]]


def _accuracy(clean: float, left: Sequence[float], change: bool) -> list[float]:
    """In percent, or in points below the clean one."""
    return [100 * (part - clean * change) for part in left]


def _bars(first: dict[str, Any], change: bool) -> Callable[[Any], Any] | None:
    """Of a single network: where accuracy lies. Of a change they would be others, that nobody has counted."""
    return None if change or "images" not in first else over_images(first["images"])


def _finish(axes: Any, title: str, change: bool) -> None:
    if not change:
        axes.set_ylim(0, 102)
    axes.set_ylabel("change in accuracy, points" if change else "accuracy, %")
    axes.set_title(title, fontsize=9)
    tidy(axes)
