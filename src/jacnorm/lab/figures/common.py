"""A group of networks makes one line; its interval is their standard deviation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..evaluate.compare import Groups
from ..pictures import STYLES, save_figure

METHODS = ("none", "l2", "frobenius", "spectral", "spectral-bound", "spectral-warm")  # as tables call them


def lines(axes: Any, x: Sequence[float], curves: dict[str, Any], *, apart: float = 0.0) -> None:
    """A line a group, each from an array (networks, points); bars of ± one standard deviation.

    Each is drawn so far to the right of the one before: alike, they would hide each other.
    """
    for i, ((name, values), style) in enumerate(zip(curves.items(), styles(curves), strict=True)):
        array = np.asarray(values, dtype=float)
        bars = array.std(0, ddof=1) if len(array) > 1 else None
        axes.errorbar(
            np.asarray(x) + apart * (i - (len(curves) - 1) / 2),
            array.mean(0),
            bars,
            label=name,
            linewidth=1.6,
            markersize=4.5,
            capsize=3,
            elinewidth=0.8,
            **style,
        )


def styles(names: Iterable[str]) -> list[dict[str, Any]]:
    """A method looks the same in every figure, whichever others are there; the rest get what is left."""
    own = dict(zip(METHODS, STYLES, strict=False))  # which has some left for others
    taken = [own[name.lower()] for name in names if name.lower() in own]
    left = cycle([style for style in STYLES if style not in taken] or STYLES)
    return [own.get(name.lower()) or next(left) for name in names]


def tidy(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)


def legend(axes: Any, groups: Groups, **options: Any) -> None:
    axes.legend(
        frameon=False, title=intervals(groups), title_fontsize=8, fontsize=9, handlelength=3, **options
    )


def intervals(groups: Groups) -> str | None:
    """What the bars are, or nothing when there are none."""
    counts = sorted({len(records) for records in groups.values()})
    if counts == [1]:
        return None
    networks = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean ± s.d. over {networks} networks"


def save(figure: Figure, folder: Path, name: str) -> None:
    for ending in ("svg", "png"):
        save_figure(figure, folder / f"{name}.{ending}")
