"""What goes into the page, from experiment files and results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from ..reproduce.catalog import Item, foreword, question, read_chapter
from ..reproduce.chapter import Chapter, Outcome, Table
from ..reproduce.readings import Readings
from ..results import has_diverged
from ..wording import count
from .drawings import Drawing, drawings
from .front import Bullet, Sentence, bullets, by_readings, overview, sentences, tally, title
from .provenance import Deviation, commands, deviations


@dataclass(frozen=True)
class Part:
    """A table or figure with its drawings."""

    item: Item
    chapter: Chapter
    drawings: tuple[Drawing, ...]
    question: tuple[str, str]  # what a check asks, and the answer

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
        return tuple(
            (" ".join(v.says), v) for v in self.chapter.verdicts if v.ours or not self.item.is_papers
        )


@dataclass(frozen=True)
class Content:
    told: tuple[tuple[Item, Chapter], ...]  # also those without results
    parts: tuple[Part, ...]  # those with results
    results: Path | None  # a folder of results
    deviations: tuple[Deviation, ...]
    bullets: tuple[Bullet, ...]
    readings: Readings | None
    warnings: tuple[str, ...]

    @cached_property
    def present(self) -> list[tuple[Item, Chapter]]:
        return [(item, chapter) for item, chapter in self.told if not chapter.empty]

    def only(self, keep: Callable[[Item], bool]) -> Content:
        """With the experiments that are to be kept."""
        told = tuple(one for one in self.told if keep(one[0]))
        return replace(self, told=told, parts=tuple(part for part in self.parts if keep(part.item)))

    @property
    def announced(self) -> list[tuple[Item, Chapter, tuple[str, ...]]]:
        """All experiments, each with what its file says in front."""
        return [(item, chapter, foreword(item.file)) for item, chapter in self.told]

    @property
    def future(self) -> bool:
        """There are experiments about what the paper leaves to others."""
        return any(item.is_future for item, _ in self.told)

    @property
    def tally(self) -> str:
        """Of all claims: how many hold, and so on."""
        verdicts = [verdict for _, chapter in self.present for verdict in chapter.verdicts]
        found = ", ".join(words for _, words in tally(verdicts))
        return f"{count(len(verdicts), 'claim')}: {found}." if verdicts else ""

    @property
    def title(self) -> str:
        return title(self.told)

    @property
    def absent(self) -> list[str]:
        """Titles of the paper's that have no results yet."""
        return [chapter.title for item, chapter in self.told if chapter.empty and item.is_missed]

    @property
    def under_way(self) -> list[tuple[str, str]]:
        """Titles, and how far each is."""
        return [(chapter.title, chapter.under_way) for _, chapter in self.present if chapter.under_way]

    @property
    def overview(self) -> Table | None:
        return overview(self.present)

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        return sentences(self.present)

    @property
    def rerun(self) -> tuple[str, ...]:
        return commands([item for item, _ in self.present], self.results)

    @property
    def papers(self) -> bool:
        """Something of the paper's is here."""
        return any(item.is_papers for item, _ in self.present)

    @property
    def quick(self) -> bool:
        """A quick look is."""
        return any(item.is_quick for item, _ in self.present)

    @property
    def claims(self) -> bool:
        return any(chapter.verdicts for _, chapter in self.present)

    def heading(self, part: Part) -> str:
        """Its title, unless that is the whole page's."""
        return "Results" if part.chapter.title == self.title else part.chapter.title

    @property
    def environments(self) -> list[tuple[str, int]]:
        """With the number of results from each."""
        return Counter(", ".join(f"{k} {v}" for k, v in one.items()) for one in self._ran_in).most_common()

    @property
    def version(self) -> str:
        """Those that made the results, which may be older than the one that makes the page."""
        return " and ".join(sorted({one["jacnorm"] for one in self._ran_in if "jacnorm" in one}))

    @cached_property
    def _ran_in(self) -> list[dict[str, Any]]:
        return [r["environment"] for _, s in self.present for r in s.results if "environment" in r]

    @cached_property
    def _runs(self) -> dict[str, dict[str, Any]]:
        """All that were trained, each once."""
        return {r["id"]: r for item, s in self.present if item.figure is None for r in s.results}

    @cached_property
    def _brief(self) -> set[str]:
        """The runs that choose settings, without those that another experiment has in full."""
        tables = {item.table.name: item.table for item, _ in self.present}.values()
        screening = {run.id for t in tables if t.screening_epochs for run in t.screening_runs()}
        return screening - {run.id for table in tables for run in table.runs}

    @property
    def trained(self) -> str:
        """How many networks, in words; nothing when there are none."""
        whole = {name for name, result in self._runs.items() if not has_diverged(result)}
        parts = (
            (whole - self._brief, "in full"),
            (whole & self._brief, "for a few epochs to choose settings"),
        )
        told = [(len(some), how) for some, how in parts if some]
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
) -> Content:
    """`folder` has the experiments, and what stands on the first screen, if one is wanted."""
    held_out = [item.with_protocol("held-out") for item in items]  # the clean protocol
    all_of_them = [*items, *(item for item in held_out if item.has_results and item not in items)]
    told = tuple((item, read_chapter(item)) for item in all_of_them)
    present = [(item, chapter) for item, chapter in told if not chapter.empty]
    theirs = [item for item, _ in present if item.is_papers or item.is_quick]
    short, wrong = bullets(folder, present, results) if front else ([], [])
    return Content(
        told,
        tuple(Part(item, s, tuple(drawings(s)), question(item.file)) for item, s in present),
        results,
        tuple(deviations(theirs, folder)),
        tuple(short),
        by_readings(folder, results) if front and present else None,
        (*dict.fromkeys(warning for _, chapter in told for warning in chapter.warnings), *wrong),
    )


def _training_seconds(result: dict[str, Any]) -> float:
    """By the median epoch: a machine that slept, or a run that was held, is not training."""
    seconds = result["history"].get("seconds", ())
    return median(seconds) * len(seconds) if seconds else 0.0
