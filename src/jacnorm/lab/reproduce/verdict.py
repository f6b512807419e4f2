"""What became of a claim."""

from __future__ import annotations

from dataclasses import dataclass

HOLDS, FAILS, OPEN, UNTESTED = "holds", "does not hold", "cannot be told", "not tested"
POINTS = "points of accuracy"


@dataclass(frozen=True)
class Verdict:
    text: str
    outcome: str
    evidence: str
    ours: bool = False
    says: tuple[str, ...] = ()  # the words that were tested
    compared: tuple[str, ...] = ()  # the two methods that the evidence is about, if it is about two
