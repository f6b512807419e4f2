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
