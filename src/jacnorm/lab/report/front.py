"""The page in short: its title, table 1 beside the paper's, and what became of the paper's claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ..config import read_toml
from ..reproduce.catalog import PAGE, Item, quantities_in, with_numbers
from ..reproduce.chapter import FAILS, HOLDS, OPEN, UNTESTED, Chapter, Outcome, Table
from ..reproduce.readings import Readings, readings
from ..results import experiment_file
from ..sweep.experiment import read_experiment
from ..wording import NOTHING, mean_sd, signed

Told = Sequence[tuple[Item, Chapter]]
PAPER = "Exact Spectral Norm Regularization"
SEVERAL = {HOLDS: "hold", FAILS: "do not hold"}  # as a verb of more than one


def title(told: Told) -> str:
    """It says “in part” as long as something is not there."""
    present = [(item, chapter) for item, chapter in told if not chapter.empty]
    theirs = [chapter for item, chapter in present if item.is_papers]
    if not theirs:
        if any(item.is_quick for item, _ in present):
            return f"{PAPER}: a quick look"
        return present[0][1].title if len(present) == 1 else "Experiments with jacnorm"
    if all(chapter.accuracy is None and chapter.frame is None for chapter in theirs):
        return f"{PAPER}: not reproduced yet"
    whole = all(not chapter.empty and not chapter.under_way for item, chapter in told if item.is_missed)
    return f"{PAPER}: a reproduction" + ("" if whole else " in part")


@dataclass(frozen=True)
class Bullet:
    outcome: str
    text: str  # Markdown


def bullets(folder: Path, told: Told, results: Path | None) -> tuple[list[Bullet], list[str]]:
    """Those of page.toml whose claims have come out as it says; and warnings about the others."""
    page = folder / PAGE
    outcomes = {f"{item.name}: {v.text}": v.outcome for item, s in told for v in s.verdicts}
    found, warnings = [], []
    for bullet in read_toml(page).get("summary", ()) if page.exists() else ():
        there = {outcomes.get(claim, "") for claim in bullet["claims"]}
        if there == {bullet["outcome"]}:
            numbers = lambda name: quantities_in(experiment_file(page, name), results)
            found.append(Bullet(bullet["outcome"], with_numbers(bullet["text"], page, numbers)))
        elif there <= {HOLDS, FAILS, OPEN}:
            others = f"{bullet['claims'][0]!r} and others"
            warnings.append(f"{page}: {others}: not all of them {bullet['outcome']}")
    return found, warnings


def by_readings(folder: Path, results: Path | None) -> Readings | None:
    """Of the tables that page.toml names, each with the experiments whose settings were chosen otherwise."""
    page = folder / PAGE
    asked = read_toml(page).get("readings", {}) if page.exists() else {}
    groups = [[experiment_file(page, name) for name in (table, *others)] for table, others in asked.items()]
    return readings([[read_experiment(file, results) for file in group] for group in groups])


def overview(told: Told) -> Table | None:
    """Every table 1 that there is, a row a method."""
    there = [(i.table, c.accuracy) for i, c in told if i.is_papers and c.accuracy is not None]
    if not there:
        return None
    header, columns = ["method"], []
    for table, accuracy in there:
        name = table.title.removeprefix("Table 1, ")
        header += [f"{name}: paper", "ours", "difference"]
        columns.append({label: _cells(row) for label, row in accuracy.iterrows()})
    labels = dict.fromkeys(label for table, _ in there for label in table.labels)
    nothing = (NOTHING, NOTHING, NOTHING)
    rows = [(label, *(cell for of in columns for cell in of.get(label, nothing))) for label in labels]
    seeds = sorted({len({run.seed for run in table.runs}) for table, _ in there})
    some = " or ".join(map(str, seeds))
    caption = f"Test accuracy in percent, mean ± standard deviation over {some} networks."
    return Table(caption, tuple(header), tuple(rows))


def _cells(row: pd.Series) -> tuple[str, str, str]:
    return mean_sd(row["paper"], row["paper_sd"]), mean_sd(row["mean"], row["sd"]), signed(row["difference"])


@dataclass(frozen=True)
class Sentence:
    """Words of the paper, and what became of each claim that tests them, with its table or figure."""

    words: str
    verdicts: tuple[tuple[str, Outcome], ...]

    @property
    def tally(self) -> tuple[tuple[str, str], ...]:
        return tally(verdict for _, verdict in self.verdicts)


def tally(verdicts: Iterable[Outcome]) -> tuple[tuple[str, str], ...]:
    """Each outcome that there is, and how many claims have it: ("holds", "2 hold")."""
    found = Counter(verdict.outcome for verdict in verdicts)
    there = [outcome for outcome in (HOLDS, FAILS, OPEN, UNTESTED) if found[outcome]]
    return tuple((o, f"{found[o]} {o if found[o] == 1 else SEVERAL.get(o, o)}") for o in there)


def sentences(told: Told) -> tuple[Sentence, ...]:
    """In the order in which they come up. A claim that quotes nothing stands under its table's title."""
    found: dict[str, list[tuple[str, Outcome]]] = {}
    for item, chapter in told:
        for verdict in chapter.verdicts if item.is_papers else ():
            for words in () if verdict.ours else verdict.says or (chapter.title,):
                found.setdefault(words, []).append((chapter.title, verdict))
    return tuple(Sentence(words, tuple(of)) for words, of in found.items())
