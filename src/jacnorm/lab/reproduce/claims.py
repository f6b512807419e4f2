"""What the paper says, put to the test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from ..claim import Claim
from ..tables import signed
from .chapter import FAILS, HOLDS, OPEN, UNTESTED, Outcome, Quantities
from .statistics import LEVEL, Difference, correlation_within, foretold, holm, paired, rise

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
