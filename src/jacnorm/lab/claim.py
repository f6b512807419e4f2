"""What is claimed, as an experiment's file has it.

[[claims]]                         # more is above less
says = "“…” (section 4.1)"         # optional, also several: what this claim, and those after it, are to test
text = "Spectral is better than Spectral-Bound"
more = "spectral"
less = "spectral-bound"

[[claims]]                         # at least one of these is above less
text = "…"
any_of = ["frobenius", "spectral"]
less = "none"

[[claims]]                         # methods are alike
text = "…"
quantity = "noise"                 # accuracy unless told otherwise; a figure's file says which there are
within = 2.0                       # no two differ by more ...
methods = ["l2", "spectral"]       # ... of these (all unless told otherwise)
of = "spectral"                    # optional: only this one is compared, with each of the others

[[claims]]                         # more is so many times less
text = "…"
more = "analytic"
less = "spectral"
factor = [30, 300]

[[claims]]                         # a quantity tends to rise from method to method ...
text = "…"
quantity = "pgd-worst"
rises_with = "sampled"             # ... in the order that another puts them in
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .config import ConfigError


@dataclass(frozen=True)
class Claim:
    text: str
    quantity: str = "accuracy"
    more: str = ""
    less: str = ""
    any_of: tuple[str, ...] = ()  # in place of more: at least one of them is
    within: float | None = None
    methods: tuple[str, ...] = ()  # that `within` or `rises_with` is about
    of: str = ""  # the one of them that all others are compared with
    factor: tuple[float, float] | None = None
    rises_with: str = ""  # a quantity, too
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
        before = found[-1].says if found and not claim.get("ours") else ()  # what is ours quotes nobody
        found.append(_claim(where, {"says": list(before), **claim} if before else claim))
    return tuple(found)


def _claim(where: object, claim: Mapping[str, Any]) -> Claim:
    known = {field.name for field in fields(Claim)}
    if unknown := set(claim) - known:
        raise ConfigError(f"{where}: a claim has no {unknown.pop()!r}; it has {', '.join(sorted(known))}")
    test = set(claim) - {"text", "quantity", "ours", "says"}
    is_comparison = {"more", "less"} <= test <= {"more", "less", "factor"}
    is_existence = test == {"any_of", "less"}
    is_alike = {"within"} <= test <= {"within", "methods", "of"}
    is_rising = {"rises_with"} <= test <= {"rises_with", "methods"}
    if "text" not in claim or not (is_comparison or is_existence or is_alike or is_rising):
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


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _all(values: Any, is_right: Any) -> bool:
    return isinstance(values, list) and all(map(is_right, values))


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _are_names(values: Any) -> bool:
    return _all(values, _is_word) and len(set(values)) == len(values) > 1


_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("text", "quantity", "more", "less", "of", "rises_with"), (_is_word, "a text")),
    "says": (lambda v: _is_word(v) or (_all(v, _is_word) and v), "a text or several"),
    "within": (lambda v: _is_number(v) and v > 0, "a number above 0"),
    **dict.fromkeys(("any_of", "methods"), (_are_names, "a list of two names or more")),
    "factor": (lambda v: _all(v, _is_number) and len(v) == 2 and 0 < v[0] < v[1], "[least, most]"),
    "ours": (lambda v: isinstance(v, bool), "true or false"),
}
