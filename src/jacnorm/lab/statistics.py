"""Tests and intervals for few seeds. Frames have a row for each seed and a column for each method.

Two runs of one seed start from the same weights and see the same order of images, so methods are compared
seed by seed. Importing scipy.stats takes a second, so only those who need it wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .wording import signed

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95  # of confidence intervals; what is less likely than 1 − LEVEL by chance counts as found
PAPER_RUNS = 5
TINY = 1e-12  # of rounding
DRAWS = 2000  # of a bootstrap

Scores = NDArray[np.float64]


class Difference(NamedTuple):
    """a − b over the seeds that both have. p is two-sided: Student's paired test, or the sign test."""

    n: int
    mean: float
    low: float  # confidence interval
    high: float
    p: float

    def shown(self, unit: str = "") -> str:
        """
        >>> Difference(5, 0.2, 0.1, 0.3, 0.004).shown("pixels")
        '+0.20 [+0.10, +0.30] pixels'
        >>> Difference(2, 0.2, 0.2, 0.2, 0.5).shown("pixels")
        '+0.20 pixels in every seed'
        """
        if self.low == self.high:
            return f"{signed(self.mean)} {unit}".rstrip() + " in every seed"
        return f"{signed(self.mean)} [{signed(self.low)}, {signed(self.high)}] {unit}".rstrip()


def probability(p: float) -> str:
    """
    >>> probability(0.0421), probability(0.00001)
    ('p = 0.042', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def paired(a: pd.Series, b: pd.Series, level: float = LEVEL) -> Difference | None:
    """None with fewer than two seeds in common. Without any spread the sign test decides."""
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


def welch(ours: pd.Series, mean: float, sd: float) -> tuple[float, float]:
    """How far our mean is from the paper's, in standard errors of the difference, and p; NaN without any."""
    from scipy import stats

    if not math.hypot(ours.std(), sd) > 0 or math.isnan(sd):
        return math.nan, math.nan
    theirs = (mean, sd, PAPER_RUNS)
    found = stats.ttest_ind_from_stats(ours.mean(), ours.std(), ours.count(), *theirs, equal_var=False)
    return float(found.statistic), float(found.pvalue)


class Rise(NamedTuple):
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
    """Both frames with the methods of the first, and the seeds that have all of them."""
    by = by.reindex(columns=of.columns)
    seeds = of.dropna().index.intersection(by.dropna().index)
    return of.loc[seeds], by.loc[seeds]


def foretold(of: pd.DataFrame, by: pd.DataFrame) -> list[list[float]]:
    """For each seed the values of all methods, in the order that `by` has on average in the other seeds.

    The seed itself is left out. Chance that two quantities of one network share would look like a rise.
    """
    of, by = shared(of, by)
    if len(of) < 2:
        return []
    return [of.loc[s, by.drop(s).mean().sort_values(kind="stable").index].to_list() for s in of.index]


class Correlation(NamedTuple):
    r: float
    low: float  # confidence interval, by Fisher's transform
    high: float


def correlation_within(x: pd.DataFrame, y: pd.DataFrame) -> Correlation | None:
    """Pearson's r among networks of one method. None with few networks.

    Each method counts alike, whatever its spread. The mean of each seed is taken out: networks of one seed
    start from the same weights, so they are not independent.
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


def interquartile_mean(scores: Scores) -> float:
    """The mean of the middle half. A quarter of the values is cut at each end, rounded down, as in rliable.

    >>> interquartile_mean(np.array([0.0, 1, 2, 3, 4, 5, 6, 700]))
    3.5
    """
    from scipy import stats

    return float(stats.trim_mean(scores, 0.25)) if len(scores) else math.nan


def interval(strata: Sequence[Scores], against: Sequence[Scores] | None = None) -> tuple[float, float]:
    """A bootstrap interval of the interquartile mean, or of its difference to that of `against`.

    Runs are drawn with replacement in each stratum (Agarwal et al., 2021). The result is the same each time.
    """
    random = np.random.Generator(np.random.PCG64(0))
    found = _drawn(strata, random)
    if against is not None:
        found = found - _drawn(against, random)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _drawn(strata: Sequence[Scores], random: np.random.Generator) -> Scores:
    from scipy import stats

    parts = [of[random.integers(len(of), size=(DRAWS, len(of)))] for of in strata if len(of)]
    means: Scores = stats.trim_mean(np.concatenate(parts, axis=1), 0.25, axis=1)
    return means
