"""The page in short: its title, and what became of the paper's claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..reproduce.catalog import Item
from ..reproduce.chapter import FAILS, HOLDS, OPEN, UNTESTED, Chapter, Outcome

PAPER = "Exact Spectral Norm Regularization"
SEVERAL = {HOLDS: "hold", FAILS: "do not hold"}  # as a verb of more than one


@dataclass(frozen=True)
class Sentence:
    """Words of the paper, and what became of each claim that tests them, with its table or figure."""

    words: str
    verdicts: tuple[tuple[str, Outcome], ...]

    @property
    def tally(self) -> tuple[tuple[str, str], ...]:
        """Each outcome that there is, and how many claims have it: ("holds", "2 hold")."""
        found = Counter(verdict.outcome for _, verdict in self.verdicts)
        there = [outcome for outcome in (HOLDS, FAILS, OPEN, UNTESTED) if found[outcome]]
        return tuple((o, f"{found[o]} {o if found[o] == 1 else SEVERAL.get(o, o)}") for o in there)


def title(told: Sequence[tuple[Item, Chapter]]) -> str:
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


def sentences(told: Sequence[tuple[str, Sequence[Outcome]]]) -> tuple[Sentence, ...]:
    """In the order in which they come up. A claim that quotes nothing stands under its table's title."""
    found: dict[str, list[tuple[str, Outcome]]] = {}
    for where, verdicts in told:
        for verdict in verdicts:
            if not verdict.ours:
                for words in verdict.says or (where,):
                    found.setdefault(words, []).append((where, verdict))
    return tuple(Sentence(words, tuple(of)) for words, of in found.items())
