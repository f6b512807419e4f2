"""What goes into the page, from experiment files and results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from ..claims import FAILS, HOLDS, OPEN, UNTESTED, Outcome
from ..figures.draw import Drawing, drawings
from ..reproduce.catalog import Item, foreword, read_chapter
from ..reproduce.chapter import Chapter, Table
from ..reproduce.readings import Readings
from ..results import has_diverged
from ..wording import NOTHING, count, signed, spreads
from .editorial import Bullet, Deviation, bullets, by_readings, commands, deviations

PAPER = "Exact Spectral Norm Regularization"
SEVERAL = {HOLDS: "hold", FAILS: "do not hold"}  # as a verb of more than one


@dataclass(frozen=True)
class Section:
    """A table or figure with its drawings."""

    item: Item
    chapter: Chapter

    @cached_property
    def drawings(self) -> tuple[Drawing, ...]:
        return tuple(drawings(self.chapter))

    @cached_property
    def foreword(self) -> tuple[str, ...]:
        """The comment that its file begins with."""
        return foreword(self.item.file)

    @property
    def is_check(self) -> bool:
        return self.item.file.parent.name == "checks"

    @property
    def on_front(self) -> bool:
        """Figures 3 to 5 of the first data set stand on the first screen."""
        return self.item.is_papers and self.item.figure is not None and self.item.data == "kmnist"

    @property
    def own_claims(self) -> tuple[tuple[str, Outcome], ...]:
        """Questions of ours about the paper's tables, and everything that another experiment claims."""
        ours = (v for v in self.chapter.verdicts if v.ours or not self.item.is_papers)
        return tuple((" ".join(v.says), v) for v in ours)


class Sentence(NamedTuple):
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


@dataclass(frozen=True)
class Report:
    all_sections: tuple[Section, ...]  # also without results
    results: Path | None  # a folder of results
    deviations: list[Deviation]
    bullets: list[Bullet]
    readings: Readings | None
    warnings: tuple[str, ...]

    @cached_property
    def sections(self) -> list[Section]:
        return [section for section in self.all_sections if not section.chapter.empty]

    @cached_property
    def papers(self) -> list[Section]:
        """The paper's own table and figures."""
        return [section for section in self.sections if section.item.is_papers]

    @property
    def quick(self) -> bool:
        """A quick look is here."""
        return any(section.item.is_quick for section in self.sections)

    def only(self, keep: Callable[[Item], bool]) -> Report:
        """With some of the experiments."""
        return replace(self, all_sections=tuple(one for one in self.all_sections if keep(one.item)))

    @property
    def future(self) -> bool:
        """There are experiments about what the paper leaves to others."""
        return any(section.item.is_future for section in self.all_sections)

    @property
    def tally(self) -> str:
        """Of all claims: how many hold, and so on."""
        verdicts = [verdict for section in self.sections for verdict in section.chapter.verdicts]
        found = ", ".join(words for _, words in tally(verdicts))
        return f"{count(len(verdicts), 'claim')}: {found}." if verdicts else ""

    @property
    def title(self) -> str:
        """It says “in part” as long as something is missing."""
        if not self.papers:
            if self.quick:
                return f"{PAPER}: a quick look"
            return self.sections[0].chapter.title if len(self.sections) == 1 else "Experiments with jacnorm"
        if all(one.chapter.accuracy is None and one.chapter.frame is None for one in self.papers):
            return f"{PAPER}: not reproduced yet"
        whole = not self.absent and not any(
            one.item.is_missed and one.chapter.under_way for one in self.papers
        )
        return f"{PAPER}: a reproduction" + ("" if whole else " in part")

    @property
    def absent(self) -> list[str]:
        """Titles of the paper's that have no results yet."""
        return [one.chapter.title for one in self.all_sections if one.chapter.empty and one.item.is_missed]

    @property
    def under_way(self) -> list[tuple[str, str]]:
        """Titles, and how far each is."""
        return [(one.chapter.title, one.chapter.under_way) for one in self.sections if one.chapter.under_way]

    def heading(self, section: Section) -> str:
        """Its title, unless that is the whole page's."""
        return "Results" if section.chapter.title == self.title else section.chapter.title

    @property
    def overview(self) -> Table | None:
        """Every table 1 that there is, with a row for each method."""
        there = [
            (one.item.table, one.chapter.accuracy) for one in self.papers if one.chapter.accuracy is not None
        ]
        if not there:
            return None
        parts = []
        for table, found in there:
            first = f"{table.title.removeprefix('Table 1, ')}: paper"
            shown = pd.DataFrame({first: spreads(found["paper"], found["paper_sd"])}, found.index)
            shown["ours"] = spreads(found["mean"], found["sd"])
            parts.append(shown.assign(difference=found["difference"].map(signed)))
        labels = list(dict.fromkeys(label for table, _ in there for label in table.labels))
        cells = pd.concat(parts, axis=1).reindex(labels).fillna(NOTHING).rename_axis("method")
        seeds = sorted({len({run.seed for run in table.runs}) for table, _ in there})
        some = " or ".join(map(str, seeds))
        return Table.of(f"Test accuracy in percent, mean ± standard deviation over {some} networks.", cells)

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """In the order in which they come up. A claim that quotes nothing stands under its table's title."""
        found: dict[str, list[tuple[str, Outcome]]] = {}
        for chapter in (section.chapter for section in self.papers):
            for verdict in (verdict for verdict in chapter.verdicts if not verdict.ours):
                for words in verdict.says or (chapter.title,):
                    found.setdefault(words, []).append((chapter.title, verdict))
        return tuple(Sentence(words, tuple(of)) for words, of in found.items())

    @property
    def claims(self) -> bool:
        return any(section.chapter.verdicts for section in self.sections)

    @property
    def rerun(self) -> tuple[str, ...]:
        return commands([section.item for section in self.sections], self.results)

    @property
    def environments(self) -> list[tuple[str, int]]:
        """With the number of results from each."""
        return Counter(", ".join(f"{k} {v}" for k, v in one.items()) for one in self._ran_in).most_common()

    @property
    def version(self) -> str:
        """The versions that made the results. They may be older than the one that makes the page."""
        return " and ".join(sorted({one["jacnorm"] for one in self._ran_in if "jacnorm" in one}))

    @cached_property
    def _ran_in(self) -> list[dict[str, Any]]:
        return [r["environment"] for s in self.sections for r in s.chapter.results if "environment" in r]

    @cached_property
    def _runs(self) -> dict[str, dict[str, Any]]:
        """All that were trained, each once."""
        return {r["id"]: r for s in self.sections if s.item.figure is None for r in s.chapter.results}

    @cached_property
    def _brief(self) -> set[str]:
        """The runs that choose settings, without those that another experiment has in full."""
        tables = {section.item.table.name: section.item.table for section in self.sections}.values()
        screening = {run.id for t in tables if t.screening_epochs for run in t.screening_runs()}
        return screening - {run.id for table in tables for run in table.runs}

    @property
    def trained(self) -> str:
        """How many networks, in words; nothing when there are none."""
        whole = {name for name, result in self._runs.items() if not has_diverged(result)}
        brief = "for a few epochs to choose settings"
        parts = ((len(whole - self._brief), "in full"), (len(whole & self._brief), brief))
        told = [(n, how) for n, how in parts if n]
        first = [f"{count(n, 'network')} trained {how}" for n, how in told[:1]]
        return " and ".join(first + [f"{n} {how}" for n, how in told[1:]])

    @property
    def time(self) -> str:
        """Of training."""
        seconds = sum(map(_training_seconds, self._runs.values()))
        if seconds > 2 * 3600:
            return f"{seconds / 3600:.0f} hours"
        return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"


def collect(
    items: Sequence[Item], results: Path | None = None, folder: Path = Path("paper"), *, front: bool = True
) -> Report:
    """`folder` has the experiments, and what stands on the first screen, if one is wanted."""
    held_out = [item.with_protocol("held-out") for item in items]  # the clean protocol
    all_of_them = [*items, *(item for item in held_out if item.has_results and item not in items)]
    told = tuple(Section(item, read_chapter(item)) for item in all_of_them)
    present = [section for section in told if not section.chapter.empty]
    theirs = [one.item for one in present if one.item.is_papers or one.item.is_quick]
    outcomes = {f"{one.item.name}: {v.text}": v.outcome for one in present for v in one.chapter.verdicts}
    short, wrong = bullets(folder, outcomes, results) if front else ([], [])
    return Report(
        all_sections=told,
        results=results,
        deviations=deviations(theirs, folder),
        bullets=short,
        readings=by_readings(folder, results) if front and present else None,
        warnings=(*dict.fromkeys(w for section in told for w in section.chapter.warnings), *wrong),
    )


def _training_seconds(result: dict[str, Any]) -> float:
    """By the median epoch: a machine that slept, or a run that was held, is not training."""
    seconds = result["history"].get("seconds", ())
    return median(seconds) * len(seconds) if seconds else 0.0
