"""Accuracy against noise and attacks, figure 3 of the paper, and what a stronger judge leaves of it."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ..evaluate.compare import Groups, Record
from .common import legend, lines, tidy

TITLES = {"pgd": "PGD", "tpgd": "TPGD", "square": "Square"}
APART = 0.07  # of the distance between two strengths
JUDGES = {"apgd-ce": "APGD-CE", "apgd-t": "APGD-T", "fmn": "FMN", "square": "Square"}


def noise(groups: Groups) -> Figure:
    figure = Figure(figsize=(5.5, 4), layout="constrained")
    axes = figure.subplots()
    x = next(iter(groups.values()))[0]["noise"]["variances"]
    curves = {name: [_points(r["noise"]["drop"]) for r in group] for name, group in groups.items()}
    lines(axes, x, curves, apart=APART / 20 * max(x))
    axes.set_xlabel("variance of the noise on each pixel")
    axes.set_ylabel("change in accuracy, points")
    tidy(axes)
    legend(axes, groups)
    return figure


def attacks(groups: Groups, measure: str = "worst") -> Figure:
    """`measure`: worst, or last for the paper's way."""
    first = next(iter(groups.values()))[0]["attacks"]
    figure = Figure(figsize=(max(5.5, 3.6 * len(first)), 4), layout="constrained")
    panels = figure.subplots(1, len(first), squeeze=False, sharey=True)[0]
    for axes, (name, attack) in zip(panels, first.items(), strict=True):
        curves = {label: [_fall(r, name, measure) for r in group] for label, group in groups.items()}
        strengths = attack["iterations"]
        positions = range(len(strengths))  # evenly, since the strengths grow about geometrically from 0
        lines(axes, positions, curves, apart=APART)
        axes.set_xticks(positions, [str(s) for s in strengths])
        axes.set_title(f"{TITLES[name]}, ε = {255 * attack['epsilons'][-1]:.4g}/255", fontsize=10)
        axes.set_xlabel("queries" if name == "square" else "iterations")
        tidy(axes)
    panels[0].set_ylabel("change in accuracy, points")
    legend(panels[0], groups, loc="lower left")
    return figure


def judge(groups: Groups) -> Figure:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    first = next(iter(groups.values()))[0]["judge"]
    curves = {
        label: [[100 * r["judge"]["clean"], *(100 * v for v in r["judge"]["robust"])] for r in group]
        for label, group in groups.items()
    }
    names = ["clean", *(f"+ {JUDGES[a]}" for a in first["attacks"])]
    lines(axes, range(len(names)), curves, apart=APART)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0, 102)
    axes.set_ylabel("images still right, %")
    axes.set_title(f"worst case for each image, ℓ∞ ε = {255 * first['epsilon']:.4g}/255", fontsize=10)
    tidy(axes)
    legend(axes, groups)
    return figure


def _fall(record: Record, name: str, measure: str) -> list[float]:
    attack: dict[str, Any] = record["attacks"][name]
    return [100 * (accuracy - attack["clean"]) for accuracy in attack[measure][-1]]


def _points(drops: list[float]) -> list[float]:
    return [-100 * drop for drop in drops]
