"""Accuracy under noise and attacks, figure 3 of the paper, and what four stronger attacks leave of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from .common import Panel, add_legend, by_method, lines, tidy

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


def attacks(frame: pd.DataFrame) -> Figure:
    """What any iterate finds, side by side."""
    names = attacks_in(frame)
    figure = Figure(figsize=(max(5.5, 3.6 * len(names)), 4), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, names, strict=True):
        attack(axes, frame, name, "worst")
        axes.set_ylabel("")
    panels[0].set_ylabel("accuracy, %")
    add_legend(panels[0], frame, loc="lower left")
    return figure


def attacks_in(frame: pd.DataFrame) -> list[str]:
    return list(frame["record"].iloc[0]["attacks"])


def is_judged(frame: pd.DataFrame) -> bool:
    return all(record.get("judge") for record in frame["record"])


def noise(axes: Any, frame: pd.DataFrame) -> None:
    x = frame["record"].iloc[0]["noise"]["variances"]
    left = by_method(frame, lambda r: [100 * (r["noise"]["clean"] - drop) for drop in r["noise"]["drop"]])
    lines(axes, x, left, apart=APART / 20 * max(x))
    axes.set_xlabel("variance of the noise on each pixel")
    _finish(axes, "White noise")


def attack(axes: Any, frame: pd.DataFrame, name: str, measure: str) -> None:
    """`measure`: worst, or last for the paper's way."""
    first = frame["record"].iloc[0]["attacks"][name]
    left = by_method(frame, lambda r: [100 * accuracy for accuracy in r["attacks"][name][measure][-1]])
    positions = range(len(first["iterations"]))  # evenly, since they grow about geometrically from 0
    lines(axes, positions, left, apart=APART)
    axes.set_xticks(positions, [str(s) for s in first["iterations"]])
    axes.set_xlabel("queries" if name == "square" else "iterations")
    _finish(axes, f"{TITLES[name]}, ε = {255 * first['epsilons'][-1]:.4g}/255")


def strong_attacks(axes: Any, frame: pd.DataFrame) -> None:
    first = frame["record"].iloc[0]["judge"]
    left = by_method(frame, lambda r: [100 * v for v in (r["judge"]["clean"], *r["judge"]["robust"])])
    names = ["clean", *(f"+ {STRONG[a]}" for a in first["attacks"])]
    lines(axes, range(len(names)), left, apart=APART)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    _finish(axes, f"Four strong attacks together, ε = {255 * first['epsilon']:.4g}/255")


def _finish(axes: Any, title: str) -> None:
    axes.set_ylim(0, 102)
    axes.set_ylabel("accuracy, %")
    axes.set_title(title, fontsize=10)
    tidy(axes)
