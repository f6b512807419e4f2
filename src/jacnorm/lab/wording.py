"""Words, numbers and tables as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "–"

# Names that people type out of habit.
HABITS = {
    "lr": "learning_rate",
    "lambda": "weight",
    "lambd": "weight",
    "batch": "batch_size",
    "model": "net",
    "l2": "weight_decay",
}


def count(n: int, what: str) -> str:
    """
    >>> count(1, "seed"), count(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def on_one_line(text: object) -> str:
    """
    >>> on_one_line("first line\\n  second line")
    'first line second line'
    """
    return " ".join(str(text).split())


def did_you_mean(word: str, known: Iterable[str]) -> str:
    names = list(known)
    plain = {name.replace("-", "").replace("_", ""): name for name in names}
    typed = word.strip("-").lower().replace("-", "").replace("_", "")
    if (habit := HABITS.get(typed, "").replace("_", "")) in plain:
        return f"did you mean {plain[habit]!r}?"
    near = get_close_matches(typed, plain, n=1, cutoff=0.7)
    return f"did you mean {plain[near[0]]!r}?" if near else f"choose one of {', '.join(names)}"


def in_words(value: object) -> str:
    """The value of a setting as text.

    >>> in_words(None), in_words(True), in_words(1e-4), in_words("lenet")
    ('–', 'yes', '0.0001', 'lenet')
    """
    if value is None:  # the method does not use the setting
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content, the first aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join((row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:]))) for row in rows
    )


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header. Columns are aligned as in `table`."""
    head, *body = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    rule = [":--", *("--:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body))


def plain(value: float, digits: int = 2) -> str:
    """
    >>> plain(-2.345), plain(math.nan)
    ('−2.35', '–')
    """
    return NOTHING if math.isnan(value) else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float, digits: int = 2) -> str:
    """
    >>> signed(-0.104), signed(-0.001), signed(2.5, 1)
    ('−0.10', '+0.00', '+2.5')
    """
    if math.isnan(value):
        return NOTHING
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")  # + 0.0: no −0.00


def mean_sd(mean: float, sd: float, digits: int = 2) -> str:
    """
    >>> mean_sd(96.613, 0.141), mean_sd(96.6, math.nan), mean_sd(math.nan, math.nan)
    ('96.61 ± 0.14', '96.60', '–')
    """
    return plain(mean, digits) + ("" if math.isnan(sd) else f" ± {sd:.{digits}f}")


def spread(values: pd.Series, digits: int = 2) -> str:
    """Mean ± standard deviation of the values that are not missing."""
    return mean_sd(values.mean(), values.std(), digits)


def spreads(means: Iterable[float], sds: Iterable[float]) -> list[str]:
    return [mean_sd(mean, sd) for mean, sd in zip(means, sds, strict=True)]


def part_of(n: int, whole: int) -> str:
    """
    >>> part_of(5, 5), part_of(4, 5)
    ('5', '4 of 5')
    """
    return f"{n}" if n == whole else f"{n} of {whole}"
