"""Accuracy under noise and attacks, figure 3 of the paper, and what four stronger attacks leave of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from ..evaluate.compare import Groups
from .common import legend, lines, tidy

TITLES = {"pgd": "PGD", "tpgd": "TPGD", "square": "Square"}
APART = 0.07  # of the distance between two strengths
STRONG = {"apgd-ce": "APGD-CE", "apgd-t": "APGD-T", "fmn": "FMN", "square": "Square"}


def robustness(groups: Groups) -> Figure:
    """Everything in one picture, with one legend."""
    first = next(iter(groups.values()))[0]
    draws: list[Callable[[Any], None]] = [partial(_noise, groups=groups)]
    draws += [partial(_attack, groups=groups, name=name, measure="last") for name in first["attacks"]]
    if all(record.get("judge") for records in groups.values() for record in records):
        draws.append(partial(_strong, groups=groups))
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels: list[Any] = list(figure.subplots(2, 3).flat)
    for axes, draw in zip(panels, draws, strict=False):
        draw(axes)
    for axes in panels[len(draws) :]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    panels[-1].legend(handles, labels, frameon=False, fontsize=10, handlelength=3, loc="center")
    return figure


def noise(groups: Groups) -> Figure:
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    _noise(axes, groups)
    legend(axes, groups, loc="lower left")
    return figure


def attacks(groups: Groups, measure: str = "worst") -> Figure:
    """`measure`: worst, or last for the paper's way."""
    first = next(iter(groups.values()))[0]["attacks"]
    figure = Figure(figsize=(max(5.5, 3.6 * len(first)), 4), layout="constrained")
    panels = figure.subplots(1, len(first), squeeze=False, sharey=True)[0]
    for axes, name in zip(panels, first, strict=True):
        _attack(axes, groups, name, measure)
        axes.set_ylabel("")
    panels[0].set_ylabel("accuracy, %")
    legend(panels[0], groups, loc="lower left")
    return figure


def judge(groups: Groups) -> Figure:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    _strong(axes, groups)
    legend(axes, groups)
    return figure


def _noise(axes: Any, groups: Groups) -> None:
    x = next(iter(groups.values()))[0]["noise"]["variances"]
    left = {
        label: [[100 * (r["noise"]["clean"] - drop) for drop in r["noise"]["drop"]] for r in records]
        for label, records in groups.items()
    }
    lines(axes, x, left, apart=APART / 20 * max(x))
    axes.set_xlabel("variance of the noise on each pixel")
    _finish(axes, "White noise")


def _attack(axes: Any, groups: Groups, name: str, measure: str) -> None:
    attack = next(iter(groups.values()))[0]["attacks"][name]
    left = {
        label: [[100 * accuracy for accuracy in r["attacks"][name][measure][-1]] for r in records]
        for label, records in groups.items()
    }
    strengths = attack["iterations"]
    positions = range(len(strengths))  # evenly, since the strengths grow about geometrically from 0
    lines(axes, positions, left, apart=APART)
    axes.set_xticks(positions, [str(s) for s in strengths])
    axes.set_xlabel("queries" if name == "square" else "iterations")
    _finish(axes, f"{TITLES[name]}, ε = {255 * attack['epsilons'][-1]:.4g}/255")


def _strong(axes: Any, groups: Groups) -> None:
    first = next(iter(groups.values()))[0]["judge"]
    left = {
        label: [[100 * r["judge"]["clean"], *(100 * v for v in r["judge"]["robust"])] for r in records]
        for label, records in groups.items()
    }
    names = ["clean", *(f"+ {STRONG[a]}" for a in first["attacks"])]
    lines(axes, range(len(names)), left, apart=APART)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    _finish(axes, f"Four strong attacks together, ε = {255 * first['epsilon']:.4g}/255")


def _finish(axes: Any, title: str) -> None:
    axes.set_ylim(0, 102)
    axes.set_ylabel("accuracy, %")
    axes.set_title(title, fontsize=10)
    tidy(axes)
