"""Means over seeds, paired differences, and tests of a rise.

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
    seeds = common(a, b)
    if len(seeds) < 2:
        return None
    from scipy import stats

    found = summary([a[seed] - b[seed] for seed in seeds])
    n, mean = found.n, found.mean
    if (found.standard_error or 0.0) < 1e-12 * max(1.0, abs(mean)):  # the same everywhere, up to rounding
        p = 1.0 if abs(mean) < 1e-12 else float(stats.binomtest(n, n).pvalue)
        return Difference(n, mean, mean, mean, p)
    test = stats.ttest_rel([a[seed] for seed in seeds], [b[seed] for seed in seeds])
    low, high = test.confidence_interval(level)
    return Difference(n, mean, float(low), float(high), float(test.pvalue))


def standard_errors(ours: Summary, mean: float, sd: float) -> float | None:
    """How far our mean is from the paper's, in standard errors of the difference (Welch)."""
    if ours.sd is None:
        return None
    error = math.sqrt(ours.sd**2 / ours.n + sd**2 / PAPER_RUNS)
    return (ours.mean - mean) / error if error else None


@dataclass(frozen=True)
class Rise:
    """Page's test: do values rise, or fall, from the first to the last of each row?"""

    n: int  # rows
    statistic: float
    rises: bool
    p: float  # two-sided; exact, with ties it errs on the large side


def rise(rows: Sequence[Sequence[float]]) -> Rise | None:
    """None with fewer than two rows or three columns, where there is nothing to test."""
    if len(rows) < 2 or len(rows[0]) < 3:
        return None
    from scipy import stats

    up = stats.page_trend_test(rows, method="exact")
    down = stats.page_trend_test([row[::-1] for row in rows], method="exact")
    p = min(1.0, 2 * float(min(up.pvalue, down.pvalue)))
    return Rise(len(rows), float(up.statistic), bool(up.pvalue < down.pvalue), p)


def foretold(of: Mapping[str, Values], by: Mapping[str, Values]) -> list[list[float]]:
    """For each seed, a value of each method, in the order that `by` puts the methods in.

    That is by its means over the other seeds: else chance that two quantities of one network share would make
    a rise of itself.
    """
    seeds = common(*of.values(), *(by[name] for name in of)) if of else []
    if len(seeds) < 2:
        return []
    rows = []
    for seed in seeds:
        means = {name: np.mean([by[name][other] for other in seeds if other != seed]) for name in of}
        rows.append([of[name][seed] for name in sorted(means, key=lambda name: means[name])])
    return rows


@dataclass(frozen=True)
class Correlation:
    r: float
    low: float  # confidence interval, by Fisher's transform
    high: float


def correlation_within(x: Mapping[str, Values], y: Mapping[str, Values]) -> Correlation | None:
    """Pearson's, among networks of one method: do they follow it, too? None with few of them.

    Each method counts alike, whatever its spread. What networks of one seed have in common is taken out: they
    start from the same weights, so that they are not as many chances as there are networks.
    """
    seeds = common(*(of[name] for name in y for of in (x, y))) if y else []
    if not seeds:
        return None
    both = np.array([[[of[name][s] for s in seeds] for name in y] for of in (x, y)])
    both = both[:, (both.std(2) > 1e-12).all(0)]  # where there is no spread there is nothing to see
    freedom = (both.shape[1] - 1) * (len(seeds) - 1)
    if freedom < 4:
        return None
    both = (both - both.mean(2, keepdims=True)) / both.std(2, keepdims=True)
    a, b = both - both.mean(1, keepdims=True)
    size = math.sqrt((a * a).sum() * (b * b).sum())
    if size < 1e-12:  # all methods are alike
        return None
    r = float((a * b).sum()) / size
    half = 1.96 / math.sqrt(freedom - 2)
    z = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r)))
    return Correlation(r, math.tanh(z - half), math.tanh(z + half))


def holm(p: Sequence[float]) -> list[float]:
    """p-values that stand for all of these tests at once (Holm, 1979)."""
    from statsmodels.stats.multitest import multipletests

    return [float(one) for one in multipletests(p, method="holm")[1]] if p else []
