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
from .statistics import LEVEL, Difference, Rise, correlation_within, foretold, holm, paired, rise

NOTHING_TO_TEST = ": there is nothing to test"
Found = tuple[str, str, tuple[str, ...]]  # the outcome, the evidence, and the two methods that were compared


@dataclass(frozen=True)
class Best:
    """The one of some methods by which it is judged whether any is above another: that which is most surely
    above; where none is, that which is least surely below, since then all are.
    """

    name: str
    difference: Difference
    p: float  # of that: above, it stands for all that were tried
    tried: int

    @property
    def n(self) -> int:
        return self.difference.n


def decide(claims: Sequence[Claim], quantities: Quantities, units: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Comparisons and rises share one error rate, by Holm's correction: the paper's one, and ours another, so
    that what we ask makes nothing of the paper's harder to confirm. `units` are the quantities'.
    """
    tests = {claim: found for claim in claims if (found := _test(claim, quantities)) is not None}
    p: dict[Claim, float] = {}
    for ours in (False, True):
        family = {claim: test.p for claim, test in tests.items() if claim.ours is ours}
        p |= zip(family, holm(list(family.values())), strict=True)
    verdicts = []
    for claim in claims:
        unit, test = units.get(claim.quantity, ""), tests.get(claim)
        outcome, evidence, compared = _decided(claim, quantities, unit, test, p.get(claim))
        verdicts.append(Outcome(claim.text, outcome, evidence, claim.ours, claim.says, compared))
    return tuple(verdicts)


def _test(claim: Claim, quantities: Quantities) -> Best | Rise | None:
    of = quantities[claim.quantity]
    if claim.rises_with:
        return rise(foretold(of.reindex(columns=claim.methods or of.columns), quantities[claim.rises_with]))
    if claim.within is not None or claim.factor is not None:
        return None
    of = of.reindex(columns=[*(claim.any_of or (claim.more,)), claim.less])
    return best(of.iloc[:, :-1], of.iloc[:, -1])


def best(of: pd.DataFrame, less: pd.Series) -> Best | None:
    """None if one of them cannot be compared."""
    found = {name: d for name in of if (d := paired(of[name], less)) is not None}
    if len(found) < len(of.columns):
        return None
    if above := {name: d for name, d in found.items() if d.mean > 0}:
        name = min(above, key=lambda name: above[name].p)
        return Best(name, above[name], min(1.0, len(found) * above[name].p), len(found))
    name = max(found, key=lambda name: found[name].p)
    return Best(name, found[name], found[name].p, len(found))


def _decided(
    claim: Claim, quantities: Quantities, unit: str, test: Best | Rise | None, p: float | None
) -> Found:
    of = quantities[claim.quantity]
    of = of.reindex(columns=claim.named if claim.less or claim.methods else of.columns)
    if absent := _empty(of):
        return UNTESTED, f"no results for {absent}", ()
    if claim.within is not None:
        return _alike(claim, claim.within, of, unit)
    if claim.factor is not None:
        return _ratio(claim, claim.factor, of)
    if claim.rises_with:
        return _rising(claim, of, quantities[claim.rises_with].reindex(columns=of.columns), test, p)
    if not isinstance(test, Best) or p is None:
        return OPEN, _too_few(claim, of, unit), (claim.more, claim.less)
    shown = f"{test.name} − {claim.less} = {interval(test.difference, unit)}"
    if test.difference.low == test.difference.high:
        shown += " (by the sign test)"
    above = test.difference.mean > 0
    if test.tried > 1:
        shown += f", the surest of {test.tried}, p times {test.tried}" * above
        shown += f", the closest of {test.tried}" * (not above)
    return _outcome(above, p), f"{shown}, {_chance(test, p)}", (test.name, claim.less)


def _empty(of: pd.DataFrame) -> str:
    return ", ".join(of.columns[of.count() == 0])


def _outcome(as_claimed: bool, p: float) -> str:
    if p >= 1 - LEVEL:
        return OPEN
    return HOLDS if as_claimed else FAILS


def _chance(found: Best | Rise, p: float) -> str:
    """How likely by chance, alone and among all that is tested with it."""
    alone, corrected = probability(found.p), probability(p)
    both = alone if alone == corrected else f"{alone}, corrected {corrected.removeprefix('p = ')}"
    return f"{both}, n = {found.n}"


def _rising(claim: Claim, of: pd.DataFrame, by: pd.DataFrame, test: object, p: float | None) -> Found:
    if absent := _empty(by):
        return UNTESTED, f"no {claim.rises_with} of {absent}", ()
    if not isinstance(test, Rise) or p is None:
        return OPEN, f"fewer than three methods or two seeds in common{NOTHING_TO_TEST}", ()
    order = " < ".join(by.mean().sort_values(kind="stable").index)
    evidence = f"{order}: Page's L = {test.statistic:g}, {_chance(test, p)}"
    if within := correlation_within(by, of):
        interval = f"{signed(within.r)} [{signed(within.low)}, {signed(within.high)}]"
        evidence += f"; among networks of one method r = {interval}"
    return _outcome(test.rises, p), evidence, ()


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
