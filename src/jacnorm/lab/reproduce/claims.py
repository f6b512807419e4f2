"""What the paper says, put to the test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ..claim import Claim
from .chapter import FAILS, HOLDS, OPEN, UNTESTED, Outcome, Quantities
from .numbers import interval, probability, signed
from .statistics import (
    LEVEL,
    Difference,
    Rise,
    Values,
    common,
    correlation_within,
    foretold,
    holm,
    paired,
    rise,
    summary,
)


def decide(claims: Sequence[Claim], quantities: Quantities, units: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Comparisons and rises share one error rate, by Holm's correction: the paper's one, and ours another, so
    that what we ask makes nothing of the paper's harder to confirm. `units` are the quantities'.
    """
    tested = {claim: found for claim in claims if (found := _test(claim, quantities)) is not None}
    corrected: dict[Claim, float] = {}
    for ours in (False, True):
        family = {claim: found.p for claim, found in tested.items() if claim.ours is ours}
        corrected |= zip(family, holm(list(family.values())), strict=True)
    return tuple(
        _decided(claim, quantities, units.get(claim.quantity, ""), tested.get(claim), corrected.get(claim))
        for claim in claims
    )


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


def best(of: Mapping[str, Values], less: Values) -> Best | None:
    """None if one of them cannot be compared."""
    found = {name: d for name, values in of.items() if (d := paired(values, less)) is not None}
    if len(found) < len(of):
        return None
    if above := {name: d for name, d in found.items() if d.mean > 0}:
        name = min(above, key=lambda name: above[name].p)
        return Best(name, above[name], min(1.0, len(of) * above[name].p), len(of))
    name = max(found, key=lambda name: found[name].p)
    return Best(name, found[name], found[name].p, len(of))


def _test(claim: Claim, quantities: Quantities) -> Best | Rise | None:
    methods = quantities.get(claim.quantity, {})
    if claim.rises_with:
        of = {name: methods[name] for name in claim.methods or methods if name in methods}
        return rise(foretold(of, quantities[claim.rises_with]))
    if claim.within is not None or claim.factor is not None:
        return None
    return best({name: methods.get(name, {}) for name in _above(claim)}, methods.get(claim.less, {}))


def _above(claim: Claim) -> tuple[str, ...]:
    """One of these is to be above `less`."""
    return claim.any_of or (claim.more,)


def _decided(
    claim: Claim, quantities: Quantities, unit: str, found: Best | Rise | None, p: float | None
) -> Outcome:
    methods = quantities.get(claim.quantity, {})
    asked = claim.named if claim.less or claim.methods else tuple(methods)
    if absent := [name for name in asked if not methods.get(name)]:
        return _verdict(claim, UNTESTED, f"no results for {', '.join(absent)}")
    if claim.within is not None:
        return _alike(claim, {name: methods[name] for name in asked}, unit)
    if claim.factor is not None:
        return _ratio(claim, methods)
    if claim.rises_with:
        of, by = {name: methods[name] for name in asked}, quantities[claim.rises_with]
        return _rising(claim, of, by, found if isinstance(found, Rise) else None, p)
    if not isinstance(found, Best) or p is None:
        return _open(claim, _too_few(claim, methods, unit), (claim.more, claim.less))
    shown = f"{found.name} − {claim.less} = {interval(found.difference, unit)}"
    if found.difference.low == found.difference.high:
        shown = f"{shown} (by the sign test)"
    above = found.difference.mean > 0
    if found.tried > 1:
        rank = (
            f"the surest of {found.tried}, p times {found.tried}"
            if above
            else f"the closest of {found.tried}"
        )
        shown = f"{shown}, {rank}"
    return _verdict(claim, _outcome(above, p), f"{shown}, {_chance(found, p)}", (found.name, claim.less))


def _outcome(as_claimed: bool, p: float) -> str:
    if p >= 1 - LEVEL:
        return OPEN
    return HOLDS if as_claimed else FAILS


def _chance(found: Best | Rise, p: float) -> str:
    """How likely by chance, alone and among all that is tested with it."""
    alone, corrected = probability(found.p), probability(p)
    both = alone if alone == corrected else f"{alone}, corrected {corrected.removeprefix('p = ')}"
    return f"{both}, n = {found.n}"


def _verdict(claim: Claim, outcome: str, evidence: str, compared: tuple[str, ...] = ()) -> Outcome:
    return Outcome(claim.text, outcome, evidence, claim.ours, claim.says, compared)


def _rising(
    claim: Claim, of: Mapping[str, Values], by: Mapping[str, Values], found: Rise | None, p: float | None
) -> Outcome:
    if absent := [name for name in of if not by.get(name)]:
        return _verdict(claim, UNTESTED, f"no {claim.rises_with} of {', '.join(absent)}")
    if found is None or p is None:
        return _open(claim, "fewer than three methods or two seeds in common: there is nothing to test")
    order = sorted(of, key=lambda name: summary(list(by[name].values())).mean)
    evidence = f"{' < '.join(order)}: Page's L = {found.statistic:g}, {_chance(found, p)}"
    if within := correlation_within(by, of):
        r = f"{signed(within.r)} [{signed(within.low)}, {signed(within.high)}]"
        evidence += f"; among networks of one method r = {r}"
    return _verdict(claim, _outcome(found.rises, p), evidence)


def _alike(claim: Claim, methods: Mapping[str, Values], unit: str) -> Outcome:
    """Holds if every interval is inside the margin; does not if one, widened for their number, is outside.
    The interval that is shown is the one that decides.
    """
    assert claim.within is not None
    pairs = [pair for pair in combinations(methods, 2) if not claim.of or claim.of in pair]
    alone = _differences(methods, pairs)
    if not pairs or len(alone) < len(pairs):
        return _open(claim, "too few methods or seeds: there is nothing to test")
    together = _differences(methods, pairs, tests=len(pairs))
    apart = {pair: d for pair, d in together.items() if d.low > claim.within or d.high < -claim.within}
    inside = all(-claim.within < d.low and d.high < claim.within for d in alone.values())
    outcome = FAILS if apart else HOLDS if inside else OPEN
    deciding = apart or (alone if inside else together)
    (a, b), d = max(deciding.items(), key=lambda found: abs(found[1].mean))
    shown = f"{'apart' if apart else 'most apart'}: {a} − {b} = {interval(d, unit)}"
    widened = f", of {len(pairs)} pairs at once" if len(pairs) > 1 and not inside else ""
    evidence = f"{shown}{widened}; alike means within {claim.within:g}, n = {d.n}"
    return _verdict(claim, outcome, evidence)


def _differences(
    methods: Mapping[str, Values], pairs: Sequence[tuple[str, str]], tests: int = 1
) -> dict[tuple[str, str], Difference]:
    """Of pairs that can be compared, with intervals that stand for so many tests at once (Bonferroni)."""
    level = 1 - (1 - LEVEL) / tests
    found = {(a, b): paired(methods[a], methods[b], level) for a, b in pairs}
    return {pair: d for pair, d in found.items() if d is not None}


def _ratio(claim: Claim, methods: Mapping[str, Values]) -> Outcome:
    assert claim.factor is not None
    if any(value <= 0 for name in (claim.more, claim.less) for value in methods[name].values()):
        return _open(claim, f"{claim.quantity} is not always above 0: there is no ratio")
    d = paired(_logs(methods[claim.more]), _logs(methods[claim.less]))
    if d is None:
        return _open(claim, _too_few(claim, methods), (claim.more, claim.less))
    mean, low, high = math.exp(d.mean), math.exp(d.low), math.exp(d.high)
    least, most = claim.factor
    outcome = HOLDS if least <= low and high <= most else FAILS if high < least or low > most else OPEN
    asked = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
    shown = f"{claim.quantity} of {claim.more} / {claim.less} = {mean:.3g} [{low:.3g}, {high:.3g}]"
    evidence = f"{shown}, n = {d.n}; asked for: {asked}"
    return _verdict(claim, outcome, evidence, (claim.more, claim.less))


def _logs(values: Values) -> Values:
    return {seed: math.log(value) for seed, value in values.items()}


def _too_few(claim: Claim, methods: Mapping[str, Values], unit: str = "") -> str:
    if claim.any_of:
        return "fewer than two seeds in common: there is nothing to test"
    more, less = methods[claim.more], methods[claim.less]
    seeds = common(more, less)
    if not seeds:
        return "no seed in common: there is nothing to test"
    difference = summary([more[s] - less[s] for s in seeds]).mean
    shown = f"{claim.more} − {claim.less} = {signed(difference)} {unit}".rstrip()
    return f"{shown} in the one seed in common: there is nothing to test"


def _open(claim: Claim, why: str, compared: tuple[str, ...] = ()) -> Outcome:
    return _verdict(claim, OPEN, why, compared)
