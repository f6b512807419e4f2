"""Whether the methods stand in an order that is expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from .numbers import count, interval, probability
from .statistics import LEVEL, Difference, Values, common, holm, paired, trend
from .verdict import FAILS, HOLDS, OPEN


def ordered(methods: Mapping[str, Values], expected: Sequence[str], unit: str) -> tuple[str, str]:
    """Outcome and evidence: Page's test over seeds, and every pair of methods.

    Page's test finds a tendency: not that each method is above the one before it.
    """
    seeds = common(*(methods[name] for name in expected))
    columns = {name: {seed: methods[name][seed] for seed in seeds} for name in expected}
    found = trend(list(columns.values()))
    if found is None:
        return OPEN, f"{count(len(seeds), 'seed')} in common: there is nothing to test"
    below = _below(columns)
    evidence = f"Page's L = {found.statistic:g}, {probability(found.p)}, n = {found.seeds}"
    if wrong := [f"{pair} ({interval(d, unit)})" for pair, (d, p) in below.items() if p < 1 - LEVEL]:
        return FAILS, f"{evidence}; but {'; '.join(wrong)}"
    if found.p >= 1 - LEVEL:
        return OPEN, evidence
    means = f"but for chance: {', '.join(below)}" if below else "as the means stand"
    return HOLDS, f"{evidence}, {means}"


def _below(columns: Mapping[str, Values]) -> dict[str, tuple[Difference, float]]:
    """Pairs whose means are the other way round, with a p-value that stands for all pairs."""
    pairs = list(combinations(columns, 2))
    differences = [d for low, high in pairs if (d := paired(columns[high], columns[low])) is not None]
    corrected = holm([d.p for d in differences])
    tested = zip(pairs, differences, corrected, strict=True)
    return {f"{high} is below {low}": (d, p) for (low, high), d, p in tested if d.mean < 0}
