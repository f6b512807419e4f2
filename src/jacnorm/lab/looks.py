"""Colour, line and marker of each method in all figures. Lines can be told apart in black and white."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import cycle
from typing import Any

Look = dict[str, Any]

# By the names that tables use. Several settings of one method share its colour.
LOOKS: dict[str, Look] = {
    "none": {"color": "0.35", "linestyle": ":", "marker": "o"},
    "weight-decay": {"color": "#7a5195", "linestyle": "--", "marker": "s"},
    "frobenius": {"color": "#ef5675", "linestyle": "-.", "marker": "^"},
    "spectral": {"color": "#003f5c", "linestyle": "-", "marker": "D"},
    "spectral-bound": {"color": "#ffa600", "linestyle": (0, (5, 1)), "marker": "v"},
    "spectral-warm": {"color": "#2f9e6e", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "P"},
    "analytic": {"color": "#3a86c8", "linestyle": (0, (8, 2, 2, 2)), "marker": "*"},
    "spectral-bound-kernel": {"color": "#8c564b", "linestyle": (0, (1, 1)), "marker": "X"},
    "margin": {"color": "#00a6a6", "linestyle": (0, (6, 1, 1, 1)), "marker": "<"},
    "adversarial": {"color": "#9a8c00", "linestyle": (0, (2, 2)), "marker": ">"},
}
OTHERS: tuple[Look, ...] = (
    {"color": "#8c564b", "linestyle": (0, (1, 1)), "marker": "X"},
    {"color": "#3a86c8", "linestyle": (0, (8, 2, 2, 2)), "marker": "*"},
    {"color": "#00a6a6", "linestyle": (0, (6, 1, 1, 1)), "marker": "<"},
    {"color": "#9a8c00", "linestyle": (0, (2, 2)), "marker": ">"},
)
SETTINGS: tuple[Look, ...] = (  # of the second, third, … setting of a method
    {"linestyle": (0, (1, 1)), "marker": "p"},
    {"linestyle": (0, (6, 2)), "marker": "h"},
    {"linestyle": (0, (4, 1, 1, 1)), "marker": "d"},
)


def looks(names: Iterable[str]) -> list[Look]:
    """The look of each label, as "spectral" or "spectral, weight = 0.1". Unknown methods get an unused look.

    >>> first, second = looks(["spectral, weight = 0.1", "spectral, weight = 1"])
    >>> first["color"] == second["color"], first["marker"] == second["marker"]
    (True, False)
    """
    methods = [name.lower().partition(",")[0] for name in names]
    taken = {LOOKS[method]["color"] for method in methods if method in LOOKS}
    left = cycle([look for look in OTHERS if look["color"] not in taken] or OTHERS)
    seen: Counter[str] = Counter()
    found = []
    for method in methods:
        found.append(_setting(LOOKS[method], seen[method]) if method in LOOKS else next(left))
        seen[method] += 1
    return found


def _setting(look: Look, before: int) -> Look:
    return look | SETTINGS[(before - 1) % len(SETTINGS)] if before else look
