"""Claims about methods: how an experiment's file states them, and whether they hold.

[[claims]]                         # more is above less
says = "“…” (section 4.1)"         # optional, one or several: the words that this and the next claims test
text = "Spectral is better than Spectral-Bound"
more = "spectral"
less = "spectral-bound"

[[claims]]                         # at least one of these is above less
text = "…"
any_of = ["frobenius", "spectral"]
less = "none"

[[claims]]                         # methods are alike
text = "…"
quantity = "noise"                 # the default is accuracy; a figure has others
within = 2.0                       # no two differ by more ...
methods = ["weight-decay", "spectral"]   # ... of these (default: all)
of = "spectral"                    # optional: only this one is compared, with each of the others

[[claims]]                         # more is so many times less
text = "…"
more = "analytic"
less = "spectral"
factor = [30, 300]

[[claims]]                         # a quantity tends to rise from method to method ...
text = "…"
quantity = "pgd-worst"
rises_with = "sampled"             # ... in the order of another quantity
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .config import ConfigError
from .statistics import LEVEL, correlation_within, foretold, holm, paired, probability, rise
from .wording import signed

if TYPE_CHECKING:
    import pandas as pd

Quantities = Mapping[
    str, "pd.DataFrame"
]  # by name, each with a row for each seed and a column for each method

HOLDS, FAILS, OPEN, UNTESTED = "holds", "does not hold", "cannot be told", "not tested"
NOTHING_TO_TEST = ": there is nothing to test"


@dataclass(frozen=True)
class Claim:
    text: str
    quantity: str = "accuracy"
    more: str = ""
    less: str = ""
    any_of: tuple[str, ...] = ()  # instead of `more`: at least one of them is above
    within: float | None = None
    methods: tuple[str, ...] = ()  # which methods `within` or `rises_with` is about
    of: str = ""  # the method that the others are compared with
    factor: tuple[float, float] | None = None
    rises_with: str = ""  # another quantity
    ours: bool = False  # not the paper's
    says: tuple[str, ...] = ()  # the words that it tests

    @property
    def quantities(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.quantity, self.rises_with)))

    @property
    def named(self) -> tuple[str, ...]:
        """The methods that it names."""
        names = (self.more, *self.any_of, self.less, self.of, *self.methods)
        return tuple(dict.fromkeys(filter(None, names)))


def read_claims(where: object, claims: Any) -> tuple[Claim, ...]:
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        raise ConfigError(f"{where}: a claim begins with [[claims]], in double brackets")
    found: list[Claim] = []
    for claim in claims:
        before = found[-1].says if found and not claim.get("ours") else ()  # our own claims quote nobody
        found.append(_claim(where, {"says": list(before), **claim} if before else claim))
    return tuple(found)


def _claim(where: object, claim: Mapping[str, Any]) -> Claim:
    known = {field.name for field in fields(Claim)}
    if unknown := set(claim) - known:
        raise ConfigError(f"{where}: a claim has no {unknown.pop()!r}; it has {', '.join(sorted(known))}")
    test = set(claim) - {"text", "quantity", "ours", "says"}
    if "text" not in claim or not any(needed <= test <= needed | more for needed, more in _FORMS):
        raise ConfigError(
            f"{where}: a claim has a text, and either more and less (perhaps with factor), any_of and less, "
            "within (perhaps with methods, and of) or rises_with (perhaps with methods)"
        )
    for name, value in claim.items():
        is_right, what = _KINDS[name]
        if not is_right(value):
            raise ConfigError(f"{where}: a claim's {name} = {value!r}: {what} is needed")
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in claim.items()}
    if isinstance(claim.get("says"), str):
        settings["says"] = (claim["says"],)
    found = Claim(**settings)
    if found.rises_with == found.quantity or (found.rises_with and 0 < len(found.methods) < 3):
        raise ConfigError(f"{where}: rises_with needs another quantity, and three methods or more")
    if found.of and found.methods and found.of not in found.methods:
        raise ConfigError(f"{where}: a claim is of {found.of!r}, which is not among its methods")
    if found.less in (found.more, *found.any_of) and found.less:
        raise ConfigError(f"{where}: a claim compares {found.less!r} with itself")
    return found


# What each form of claim needs, and what it may have.
_FORMS: tuple[tuple[set[str], set[str]], ...] = (
    ({"more", "less"}, {"factor"}),
    ({"any_of", "less"}, set()),
    ({"within"}, {"methods", "of"}),
    ({"rises_with"}, {"methods"}),
)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _all(values: Any, is_right: Callable[[Any], bool], least: int = 1) -> bool:
    return isinstance(values, list) and len(values) >= least and all(map(is_right, values))


_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    **dict.fromkeys(("text", "quantity", "more", "less", "of", "rises_with"), (_is_word, "a text")),
    "says": (lambda v: _is_word(v) or _all(v, _is_word), "a text or several"),
    "within": (lambda v: _is_number(v) and v > 0, "a number above 0"),
    **dict.fromkeys(
        ("any_of", "methods"),
        (lambda v: _all(v, _is_word, 2) and len(set(v)) == len(v), "a list of two names or more"),
    ),
    "factor": (lambda v: _all(v, _is_number) and len(v) == 2 and 0 < v[0] < v[1], "[least, most]"),
    "ours": (lambda v: isinstance(v, bool), "true or false"),
}


@dataclass(frozen=True)
class Outcome:
    """The result of testing a claim."""

    text: str
    outcome: str
    evidence: str
    ours: bool = False
    says: tuple[str, ...] = ()  # the words that were tested
    compared: tuple[str, ...] = ()  # the two methods that the evidence is about, if it is about two


class Decision(NamedTuple):
    outcome: str
    evidence: str
    compared: tuple[str, ...] = ()


class Test(NamedTuple):
    """A test with a p-value, which is corrected for the number of tests."""

    shown: str
    as_claimed: bool  # False: the other way round
    p: float
    n: int
    compared: tuple[str, ...] = ()
    also: str = ""  # the text behind p

    def decided(self, corrected: float) -> Decision:
        alone, together = probability(self.p), probability(corrected)
        chance = alone if alone == together else f"{alone}, corrected {together.removeprefix('p = ')}"
        outcome = OPEN if corrected >= 1 - LEVEL else HOLDS if self.as_claimed else FAILS
        return Decision(outcome, f"{self.shown}, {chance}, n = {self.n}{self.also}", self.compared)


def decide(claims: Sequence[Claim], quantities: Quantities, units: Mapping[str, str]) -> tuple[Outcome, ...]:
    """Comparisons and rises share one error rate, by Holm's correction. The paper's claims and ours are
    corrected apart, so that our questions make no claim of the paper harder to confirm. `units` are those
    of the quantities.
    """
    found = {claim: _tested(claim, quantities, units.get(claim.quantity, "")) for claim in claims}
    decisions = {claim: one for claim, one in found.items() if isinstance(one, Decision)}
    for ours in (False, True):
        family = {c: test for c, test in found.items() if isinstance(test, Test) and c.ours is ours}
        corrected = holm([test.p for test in family.values()])
        decisions |= {c: test.decided(p) for (c, test), p in zip(family.items(), corrected, strict=True)}
    pairs = [(claim, decisions[claim]) for claim in claims]
    return tuple(Outcome(c.text, d.outcome, d.evidence, c.ours, c.says, d.compared) for c, d in pairs)


def _tested(claim: Claim, quantities: Quantities, unit: str) -> Test | Decision:
    of = quantities[claim.quantity]
    of = of.reindex(columns=claim.named if claim.less or claim.methods else of.columns)
    if absent := _empty(of):
        return Decision(UNTESTED, f"no results for {absent}")
    if claim.within is not None:
        return _alike(claim, claim.within, of, unit)
    if claim.factor is not None:
        return _ratio(claim, claim.factor, of)
    if not claim.rises_with:
        return _above(claim, of, unit)
    by = quantities[claim.rises_with].reindex(columns=of.columns)
    return (
        Decision(UNTESTED, f"no {claim.rises_with} of {absent}") if (absent := _empty(by)) else _rises(of, by)
    )


def _empty(of: pd.DataFrame) -> str:
    return ", ".join(of.columns[of.count() == 0])


def _rises(of: pd.DataFrame, by: pd.DataFrame) -> Test | Decision:
    found = rise(foretold(of, by))
    if found is None:
        return Decision(OPEN, f"fewer than three methods or two seeds in common{NOTHING_TO_TEST}")
    order = " < ".join(by.mean().sort_values(kind="stable").index)
    also = ""
    if within := correlation_within(by, of):
        r = f"{signed(within.r)} [{signed(within.low)}, {signed(within.high)}]"
        also = f"; among networks of one method r = {r}"
    return Test(f"{order}: Page's L = {found.statistic:g}", found.rises, found.p, found.n, also=also)


def _above(claim: Claim, of: pd.DataFrame, unit: str) -> Test | Decision:
    """Decide by the method that is most surely above; if all are below, by the least surely below."""
    tried = claim.any_of or (claim.more,)
    found = {name: d for name in tried if (d := paired(of[name], of[claim.less])) is not None}
    if len(found) < len(tried):
        return _too_few(claim, of, unit)
    above = {name: d for name, d in found.items() if d.mean > 0}
    name = min(above, key=lambda x: above[x].p) if above else max(found, key=lambda x: found[x].p)
    d = found[name]
    shown = f"{name} − {claim.less} = {d.shown(unit)}" + " (by the sign test)" * (d.low == d.high)
    if len(tried) > 1:
        rank = f"surest of {len(tried)}, p times {len(tried)}" if above else f"closest of {len(tried)}"
        shown += f", the {rank}"
    p = (
        min(1.0, len(tried) * d.p) if above else d.p
    )  # if it is above, it was chosen among all that were tried
    return Test(shown, bool(above), p, d.n, (name, claim.less))


def _alike(claim: Claim, margin: float, of: pd.DataFrame, unit: str) -> Decision:
    """Holds if the intervals of all pairs are inside the margin. Does not hold if one is outside, even when
    widened for the number of pairs (Bonferroni). The interval that decides is shown.
    """
    pairs = [pair for pair in combinations(of.columns, 2) if not claim.of or claim.of in pair]
    alone, together = (
        {(a, b): d for a, b in pairs if (d := paired(of[a], of[b], 1 - (1 - LEVEL) / tests))}
        for tests in (1, len(pairs) or 1)
    )
    if not pairs or len(alone) < len(pairs):
        return Decision(OPEN, f"too few methods or seeds{NOTHING_TO_TEST}")
    apart = {pair: d for pair, d in together.items() if d.low > margin or d.high < -margin}
    inside = all(-margin < d.low and d.high < margin for d in alone.values())
    deciding = apart or (alone if inside else together)
    (a, b), d = max(deciding.items(), key=lambda found: abs(found[1].mean))
    shown = f"{'apart' if apart else 'most apart'}: {a} − {b} = {d.shown(unit)}"
    widened = f", of {len(pairs)} pairs at once" if len(pairs) > 1 and not inside else ""
    outcome = FAILS if apart else HOLDS if inside else OPEN
    return Decision(outcome, f"{shown}{widened}; alike means within {margin:g}, n = {d.n}")


def _ratio(claim: Claim, factor: tuple[float, float], of: pd.DataFrame) -> Decision:
    if (of <= 0).to_numpy().any():
        return Decision(OPEN, f"{claim.quantity} is not always above 0: there is no ratio")
    d = paired(np.log(of[claim.more]), np.log(of[claim.less]))
    if d is None:
        return _too_few(claim, of, "")
    mean, low, high = math.exp(d.mean), math.exp(d.low), math.exp(d.high)
    least, most = factor
    outcome = HOLDS if least <= low and high <= most else FAILS if high < least or low > most else OPEN
    asked = f"{least:g} or more" if math.isinf(most) else f"{least:g} to {most:g}"
    shown = f"{claim.quantity} of {claim.more} / {claim.less} = {mean:.3g} [{low:.3g}, {high:.3g}]"
    return Decision(outcome, f"{shown}, n = {d.n}; asked for: {asked}", (claim.more, claim.less))


def _too_few(claim: Claim, of: pd.DataFrame, unit: str) -> Decision:
    compared = (claim.more, claim.less)
    if claim.any_of:
        return Decision(OPEN, f"fewer than two seeds in common{NOTHING_TO_TEST}", compared)
    difference = (of[claim.more] - of[claim.less]).mean()
    if math.isnan(difference):
        return Decision(OPEN, f"no seed in common{NOTHING_TO_TEST}", compared)
    shown = f"{claim.more} − {claim.less} = {signed(difference)} {unit}".rstrip()
    return Decision(OPEN, f"{shown} in the one seed in common{NOTHING_TO_TEST}", compared)
