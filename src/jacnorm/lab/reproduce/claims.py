"""What the paper says, put to the test, on frames with a row a seed and a column a method.

Two runs of one seed start from the same weights and see the same order of images, so methods are compared
seed by seed. (scipy.stats takes a second to import, so only those who need it wait for it.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from ..claim import Claim
from ..wording import signed
from .chapter import FAILS, HOLDS, OPEN, UNTESTED, Outcome, Quantities

LEVEL = 0.95  # of confidence intervals; what is less likely than 1 − LEVEL by chance counts as found
PAPER_RUNS = 5
TINY = 1e-12  # of rounding
NOTHING_TO_TEST = ": there is nothing to test"
Found = tuple[str, str, tuple[str, ...]]  # the outcome, the evidence, and the two methods that were compared


@dataclass(frozen=True)
class Test:
    """What has a p-value, so that it is corrected for the number of tests."""

    shown: str
    as_claimed: bool  # or the other way round
    p: float
    n: int
    compared: tuple[str, ...] = ()
    also: str = ""  # what is shown after p


def decide(claims: Sequence[Claim], quantities: Quantities, units: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Comparisons and rises share one error rate, by Holm's correction: the paper's one, and ours another, so
    that what we ask makes nothing of the paper's harder to confirm. `units` are the quantities'.
    """
    tests = {claim: test for claim in claims if (test := _test(claim, quantities, units)) is not None}
    p: dict[Claim, float] = {}
    for ours in (False, True):
        family = {claim: test.p for claim, test in tests.items() if claim.ours is ours}
        p |= zip(family, holm(list(family.values())), strict=True)
    verdicts = []
    for claim in claims:
        unit, test = units.get(claim.quantity, ""), tests.get(claim)
        outcome, evidence, compared = _decided(claim, quantities, unit, test, p.get(claim, math.nan))
        verdicts.append(Outcome(claim.text, outcome, evidence, claim.ours, claim.says, compared))
    return tuple(verdicts)


def _test(claim: Claim, quantities: Quantities, units: Mapping[str, str]) -> Test | None:
    of = quantities[claim.quantity]
    if claim.rises_with:
        of = of.reindex(columns=claim.methods or of.columns)
        return _rise(of, quantities[claim.rises_with].reindex(columns=of.columns))
    if claim.within is not None or claim.factor is not None:
        return None
    return _best(claim, of.reindex(columns=claim.named), units.get(claim.quantity, ""))


def _rise(of: pd.DataFrame, by: pd.DataFrame) -> Test | None:
    found = rise(foretold(of, by))
    if found is None:
        return None
    order = " < ".join(by.mean().sort_values(kind="stable").index)
    also = ""
    if within := correlation_within(by, of):
        r = f"{signed(within.r)} [{signed(within.low)}, {signed(within.high)}]"
        also = f"; among networks of one method r = {r}"
    return Test(f"{order}: Page's L = {found.statistic:g}", found.rises, found.p, found.n, also=also)


def _best(claim: Claim, of: pd.DataFrame, unit: str) -> Test | None:
    """By the one that is most surely above; where none is, by that which is least surely below, since then
    all are. None if one of them cannot be compared.
    """
    tried = claim.any_of or (claim.more,)
    found = {name: d for name in tried if (d := paired(of[name], of[claim.less])) is not None}
    if len(found) < len(tried):
        return None
    above = {name: d for name, d in found.items() if d.mean > 0}
    name = min(above, key=lambda x: above[x].p) if above else max(found, key=lambda x: found[x].p)
    d = found[name]
    shown = f"{name} − {claim.less} = {interval(d, unit)}" + " (by the sign test)" * (d.low == d.high)
    if len(tried) > 1:
        rank = f"surest of {len(tried)}, p times {len(tried)}" if above else f"closest of {len(tried)}"
        shown += f", the {rank}"
    p = min(1.0, len(tried) * d.p) if above else d.p  # above, it stands for all that were tried
    return Test(shown, bool(above), p, d.n, (name, claim.less))


def _decided(claim: Claim, quantities: Quantities, unit: str, test: Test | None, p: float) -> Found:
    of = quantities[claim.quantity]
    of = of.reindex(columns=claim.named if claim.less or claim.methods else of.columns)
    if absent := _empty(of):
        return UNTESTED, f"no results for {absent}", ()
    if claim.within is not None:
        return _alike(claim, claim.within, of, unit)
    if claim.factor is not None:
        return _ratio(claim, claim.factor, of)
    if claim.rises_with and (absent := _empty(quantities[claim.rises_with].reindex(columns=of.columns))):
        return UNTESTED, f"no {claim.rises_with} of {absent}", ()
    if test is None:
        return OPEN, _too_few(claim, of, unit), (claim.more, claim.less)
    alone, corrected = probability(test.p), probability(p)
    chance = alone if alone == corrected else f"{alone}, corrected {corrected.removeprefix('p = ')}"
    outcome = OPEN if p >= 1 - LEVEL else HOLDS if test.as_claimed else FAILS
    return outcome, f"{test.shown}, {chance}, n = {test.n}{test.also}", test.compared


def _empty(of: pd.DataFrame) -> str:
    return ", ".join(of.columns[of.count() == 0])


def _alike(claim: Claim, margin: float, of: pd.DataFrame, unit: str) -> Found:
    """Holds if every interval is inside the margin; does not if one, widened for their number (Bonferroni),
    is outside. The interval that is shown is the one that decides.
    """
    pairs = [pair for pair in combinations(of.columns, 2) if not claim.of or claim.of in pair]
    alone, together = (
        {(a, b): d for a, b in pairs if (d := paired(of[a], of[b], 1 - (1 - LEVEL) / tests))}
        for tests in (1, len(pairs) or 1)
    )
    if not pairs or len(alone) < len(pairs):
        return OPEN, f"too few methods or seeds{NOTHING_TO_TEST}", ()
    apart = {pair: d for pair, d in together.items() if d.low > margin or d.high < -margin}
    inside = all(-margin < d.low and d.high < margin for d in alone.values())
    deciding = apart or (alone if inside else together)
    (a, b), d = max(deciding.items(), key=lambda found: abs(found[1].mean))
    shown = f"{'apart' if apart else 'most apart'}: {a} − {b} = {interval(d, unit)}"
    widened = f", of {len(pairs)} pairs at once" if len(pairs) > 1 and not inside else ""
    outcome = FAILS if apart else HOLDS if inside else OPEN
    return outcome, f"{shown}{widened}; alike means within {margin:g}, n = {d.n}", ()


def _ratio(claim: Claim, factor: tuple[float, float], of: pd.DataFrame) -> Found:
    if (of <= 0).to_numpy().any():
        return OPEN, f"{claim.quantity} is not always above 0: there is no ratio", ()
    compared = (claim.more, claim.less)
    d = paired(np.log(of[claim.more]), np.log(of[claim.less]))
    if d is None:
        return OPEN, _too_few(claim, of), compared
    mean, low, high = math.exp(d.mean), math.exp(d.low), math.exp(d.high)
    least, most = factor
    outcome = HOLDS if least <= low and high <= most else FAILS if high < least or low > most else OPEN
    asked = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
    shown = f"{claim.quantity} of {claim.more} / {claim.less} = {mean:.3g} [{low:.3g}, {high:.3g}]"
    return outcome, f"{shown}, n = {d.n}; asked for: {asked}", compared


def _too_few(claim: Claim, of: pd.DataFrame, unit: str = "") -> str:
    if claim.rises_with:
        return f"fewer than three methods or two seeds in common{NOTHING_TO_TEST}"
    if claim.any_of:
        return f"fewer than two seeds in common{NOTHING_TO_TEST}"
    difference = (of[claim.more] - of[claim.less]).mean()
    if math.isnan(difference):
        return f"no seed in common{NOTHING_TO_TEST}"
    shown = f"{claim.more} − {claim.less} = {signed(difference)} {unit}".rstrip()
    return f"{shown} in the one seed in common{NOTHING_TO_TEST}"


def interval(d: Difference, unit: str = "") -> str:
    """
    >>> interval(Difference(5, 0.2, 0.1, 0.3, 0.004), "pixels")
    '+0.20 [+0.10, +0.30] pixels'
    >>> interval(Difference(2, 0.2, 0.2, 0.2, 0.5), "pixels")
    '+0.20 pixels in every seed'
    """
    if d.low == d.high:
        return f"{signed(d.mean)} {unit}".rstrip() + " in every seed"
    return f"{signed(d.mean)} [{signed(d.low)}, {signed(d.high)}] {unit}".rstrip()


def probability(p: float) -> str:
    """
    >>> probability(0.0421), probability(0.00001)
    ('p = 0.042', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


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
