"""What people make of results: `remarks` in the file of the experiment, with numbers that are computed.

{accuracy: spectral}                                  a mean over seeds, of this experiment
{accuracy: spectral - l2}                             a mean difference, over the seeds that both have
{judge@../figure3-kmnist: none}                       of another experiment, by a path from this file
{-noise: none}, {error%: random-round}                with the other sign; in percent
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ..config import ConfigError, read_toml
from .chapter import Quantities
from .numbers import NOTHING, plain
from .statistics import common, summary

NUMBER = re.compile(r"\{(-?)([\w-]+)(%?)(?:@([\w./-]+))?: ([\w-]+)(?: - ([\w-]+))?\}")
TWO_DIGITS = {"accuracy", "best_accuracy", "late_accuracy", "paper", "sigma", "first_order", "time"}


def read_remarks(file: Path, quantities_of: Callable[[str], Quantities]) -> tuple[str, ...]:
    """Paragraph by paragraph; `quantities_of` has those of an experiment, "" for this one."""
    paragraphs = read_toml(file).get("remarks", "").split("\n\n")
    whole = (" ".join(p.split()) for p in paragraphs if p.strip())
    return tuple(with_numbers(text, file, quantities_of) for text in whole)


def question(file: Path) -> tuple[str, str]:
    """The first line of an experiment's file: what it asks, and the answer, if it has one."""
    first = file.read_text(encoding="utf-8").split("\n", 1)[0]
    asked, mark, answer = first.removeprefix("# ").partition("? ")
    return (f"{asked}?", answer) if first.startswith("# ") and mark else ("", "")


def with_numbers(text: str, file: Path, quantities_of: Callable[[str], Quantities]) -> str:
    def number(match: re.Match[str]) -> str:
        sign, quantity, percent, experiment, a, b = match.groups()
        found = quantities_of(experiment or "").get(quantity, {})
        if absent := [name for name in (a, b) if name and name not in found and found]:
            raise ConfigError(f"{file}: {match[0]}: {quantity} is not known of {absent[0]!r}")
        values = (
            [found[a][s] - (found[b][s] if b else 0) for s in common(found[a], found[b or a])]
            if found
            else []
        )
        if not values:
            return NOTHING
        mean = summary(values).mean * (-1 if sign else 1) * (100 if percent else 1)
        return f"{mean:.3g}" if percent else plain(mean, 2 if quantity in TWO_DIGITS else 1)

    return NUMBER.sub(number, text)
