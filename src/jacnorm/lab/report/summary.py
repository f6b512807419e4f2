"""The page in short: its title, and what became of the paper's claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..reproduce.catalog import Item
from ..reproduce.section import Section
from ..reproduce.verdict import FAILS, HOLDS, OPEN, UNTESTED

PAPER = "Exact Spectral Norm Regularization"
PLURAL = {HOLDS: "hold", FAILS: "do not hold", OPEN: OPEN, UNTESTED: UNTESTED}


@dataclass(frozen=True)
class Outcome:
    number: int
    outcome: str

    @property
    def words(self) -> str:
        """
        >>> Outcome(1, "holds").words, Outcome(2, "does not hold").words
        ('1 holds', '2 do not hold')
        """
        return f"{self.number} {self.outcome if self.number == 1 else PLURAL[self.outcome]}"


def title(told: Sequence[tuple[Item, Section]]) -> str:
    """It says “in part” as long as something is not there."""
    theirs = [section for item, section in told if item.is_papers and not section.empty]
    if not theirs:
        present = [(item, section) for item, section in told if not section.empty]
        if any(item.is_quick for item, _ in present):
            return f"{PAPER}: a quick look"
        return present[0][1].title if len(present) == 1 else "Experiments with jacnorm"
    if not any(section.accuracy or section.groups for section in theirs):
        return f"{PAPER}: not reproduced yet"
    whole = all(not section.empty and not section.under_way for item, section in told if item.is_missed)
    return f"{PAPER}: a reproduction" + ("" if whole else " in part")


def outcomes(sections: Sequence[Section]) -> tuple[Outcome, ...]:
    found = Counter(v.outcome for section in sections for v in section.verdicts if not v.ours)
    return tuple(Outcome(found[name], name) for name in PLURAL if found[name])
