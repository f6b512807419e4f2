"""Hints for words that do not exist, and numbers of things."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

# What people type out of habit.
HABITS = {"lr": "learning_rate", "lambda": "weight", "lambd": "weight", "batch": "batch_size", "model": "net"}


def count(n: int, what: str) -> str:
    """
    >>> count(1, "seed"), count(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    names = list(known)
    plain = {name.replace("-", "").replace("_", ""): name for name in names}
    typed = word.strip("-").lower().replace("-", "").replace("_", "")
    if (habit := HABITS.get(typed, "").replace("_", "")) in plain:
        return f"did you mean {plain[habit]!r}?"
    near = get_close_matches(typed, plain, n=1, cutoff=0.7)
    return f"did you mean {plain[near[0]]!r}?" if near else f"choose one of {', '.join(names)}"
