"""A table as a picture: ours, and the paper's if there are any."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from .common import tidy

Point = tuple[float, float | None]  # mean and standard deviation


def accuracy(ours: Mapping[str, Point], paper: Mapping[str, Point]) -> Figure:
    """A row a method, the first on top; bars of ± one standard deviation."""
    labels = list(dict.fromkeys((*ours, *paper)))
    figure = Figure(figsize=(5.5, 1.3 + 0.42 * len(labels)), layout="constrained")
    axes = figure.subplots()
    apart = 0.12 if paper else 0.0
    looks = ((ours, -apart, "ours", "#003f5c", "o"), (paper, apart, "paper", "#ef5675", "s"))
    for points, shift, name, color, marker in looks:
        if points:
            rows = [labels.index(label) + shift for label in points]
            means = [point[0] for point in points.values()]
            bars = [point[1] or 0.0 for point in points.values()]
            look = {"fmt": marker, "color": color, "capsize": 3, "markersize": 5}
            axes.errorbar(means, rows, xerr=bars, label=name, **look)  # type: ignore[arg-type]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xlabel("test accuracy, %")
    tidy(axes)
    if paper:
        figure.legend(frameon=False, fontsize=9, ncols=2, loc="outside upper center")
    return figure
