"""Paired differences, and tests of a rise, on frames with a row a seed and a column a method.

Two runs of one seed start from the same weights and see the same order of images, so methods are compared
seed by seed. (scipy.stats takes a second to import, so only those who need it wait for it.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

LEVEL = 0.95  # of confidence intervals; what is less likely than 1 − LEVEL by chance counts as found
PAPER_RUNS = 5
TINY = 1e-12  # of rounding


@dataclass(frozen=True)
class Difference:
    """a − b over the seeds that both have."""

    n: int
    mean: float
    low: float  # confidence interval
    high: float
    p: float  # two-sided, of Student's paired t-test; without any spread, of the sign test


def paired(a: pd.Series, b: pd.Series, level: float = LEVEL) -> Difference | None:
    """None with fewer than two seeds in common: nothing to tell chance by."""
    from scipy import stats

    differences = (a - b).dropna()
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return None
    if differences.sem() < TINY * max(1.0, abs(mean)):  # the same everywhere
        p = 1.0 if abs(mean) < TINY else float(stats.binomtest(n, n).pvalue)
        return Difference(n, mean, mean, mean, p)
    test = stats.ttest_1samp(differences, 0.0)
    low, high = test.confidence_interval(level)
    return Difference(n, mean, float(low), float(high), float(test.pvalue))


def standard_errors(ours: pd.Series, mean: float, sd: float) -> float:
    """How far our mean is from the paper's, in standard errors of the difference (Welch); NaN without any."""
    error = math.hypot(ours.sem(), sd / math.sqrt(PAPER_RUNS))
    return (ours.mean() - mean) / error if error else math.nan


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


def shared(of: pd.DataFrame, by: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both for the methods of the first, in the seeds that have all."""
    by = by.reindex(columns=of.columns)
    seeds = of.dropna().index.intersection(by.dropna().index)
    return of.loc[seeds], by.loc[seeds]


def foretold(of: pd.DataFrame, by: pd.DataFrame) -> list[list[float]]:
    """For each seed, a value of each method, in the order that `by` puts the methods in.

    That is by its means over the other seeds: else chance that two quantities of one network share would make
    a rise of itself.
    """
    of, by = shared(of, by)
    if len(of) < 2:
        return []
    return [of.loc[s, by.drop(s).mean().sort_values(kind="stable").index].to_list() for s in of.index]


@dataclass(frozen=True)
class Correlation:
    r: float
    low: float  # confidence interval, by Fisher's transform
    high: float


def correlation_within(x: pd.DataFrame, y: pd.DataFrame) -> Correlation | None:
    """Pearson's, among networks of one method: do they follow it, too? None with few of them.

    Each method counts alike, whatever its spread. What networks of one seed have in common is taken out: they
    start from the same weights, so that they are not as many chances as there are networks.
    """
    both = shared(y, x)
    spread = np.all([one.std(ddof=0) > TINY for one in both], axis=0)  # without, there is nothing to see
    freedom = (spread.sum() - 1) * (len(both[0]) - 1)
    if freedom < 4:
        return None
    alike = [(one - one.mean()) / one.std(ddof=0) for one in (of.loc[:, spread] for of in both)]
    a, b = (one.sub(one.mean(axis=1), axis=0).to_numpy().ravel() for one in alike)
    size = np.linalg.norm(a) * np.linalg.norm(b)
    if size < TINY:  # all methods are alike
        return None
    r = float(a @ b / size)
    half = 1.96 / math.sqrt(freedom - 2)
    z = math.atanh(max(-1 + TINY, min(1 - TINY, r)))
    return Correlation(r, math.tanh(z - half), math.tanh(z + half))


def holm(p: Sequence[float]) -> list[float]:
    """p-values that stand for all of these tests at once (Holm, 1979)."""
    from statsmodels.stats.multitest import multipletests

    return [float(one) for one in multipletests(p, method="holm")[1]] if p else []
