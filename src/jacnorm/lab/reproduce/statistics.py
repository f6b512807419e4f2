"""Means over seeds, paired differences, and tests of an order.

Two runs of one seed start from the same weights and see the same order of images, so methods are compared
seed by seed. (scipy.stats takes a second to import, so only those who need it wait for it.)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVEL = 0.95  # of confidence intervals; what is less likely than 1 − LEVEL by chance counts as found
PAPER_RUNS = 5

Values = Mapping[Any, float]  # seed -> value


@dataclass(frozen=True)
class Summary:
    n: int
    mean: float
    sd: float | None  # with n − 1; None for a single value

    @property
    def standard_error(self) -> float | None:
        return None if self.sd is None else self.sd / math.sqrt(self.n)


def summary(values: Sequence[float]) -> Summary:
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(len(values), float(np.mean(values)), sd)


@dataclass(frozen=True)
class Difference:
    """a − b over the seeds that both have."""

    n: int
    mean: float
    low: float  # confidence interval
    high: float
    p: float  # two-sided, of Student's paired t-test; without any spread, of the sign test


def common(*columns: Mapping[Hashable, float]) -> list[Any]:
    """The seeds that all of them have."""
    return [key for key in columns[0] if all(key in other for other in columns[1:])]


def paired(a: Values, b: Values, level: float = LEVEL) -> Difference | None:
    """None with fewer than two seeds in common: nothing to tell chance by."""
    differences = [a[seed] - b[seed] for seed in common(a, b)]
    if len(differences) < 2:
        return None
    found = summary(differences)
    assert found.standard_error is not None
    if found.standard_error < 1e-12 * max(1.0, abs(found.mean)):  # the same everywhere, up to rounding
        p = 1.0 if abs(found.mean) < 1e-12 else 2.0 ** (1 - found.n)
        return Difference(found.n, found.mean, found.mean, found.mean, p)
    from scipy import stats

    t = stats.t(found.n - 1)
    half = float(t.ppf((1 + level) / 2)) * found.standard_error
    p = 2 * float(t.sf(abs(found.mean) / found.standard_error))
    return Difference(found.n, found.mean, found.mean - half, found.mean + half, p)


def standard_errors(ours: Summary, mean: float, sd: float) -> float | None:
    """How far our mean is from the paper's, in standard errors of the difference (Welch)."""
    if ours.sd is None:
        return None
    error = math.sqrt(ours.sd**2 / ours.n + sd**2 / PAPER_RUNS)
    return (ours.mean - mean) / error if error else None


@dataclass(frozen=True)
class Trend:
    """Page's test that the columns rise from the first to the last, against no order at all."""

    seeds: int
    statistic: float
    p: float  # exact; with ties it errs on the large side


def trend(columns: Sequence[Values]) -> Trend | None:
    """None with fewer than three columns or two seeds in common, where there is nothing to test."""
    seeds = common(*columns) if len(columns) > 2 else []
    if len(seeds) < 2:
        return None
    from scipy import stats

    blocks = [[column[seed] for column in columns] for seed in seeds]
    found = stats.page_trend_test(blocks, method="exact")
    return Trend(len(seeds), float(found.statistic), float(found.pvalue))


def correlation_within(x: Mapping[str, Values], y: Mapping[str, Values]) -> float | None:
    """Pearson's, after the mean of each method is taken away: do networks of one method follow it, too?"""
    centred = [np.empty((0, 2))]
    for name in y:
        if seeds := common(x[name], y[name]):
            own = np.array([(x[name][seed], y[name][seed]) for seed in seeds])
            centred.append(own - own.mean(0))
    found = np.concatenate(centred)
    if len(found) < 3 or min(found.std(0)) < 1e-12:
        return None
    x_squared, y_squared = (found**2).sum(0)
    return float(found.prod(1).sum() / math.sqrt(x_squared * y_squared))


def holm(p: Sequence[float]) -> list[float]:
    """p-values that stand for all of these tests at once (Holm, 1979)."""
    adjusted, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = worst
    return adjusted
