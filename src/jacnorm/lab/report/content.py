"""What goes into the page, from experiment files and results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ... import __version__
from ..reproduce.catalog import Item
from ..reproduce.chapter import Chapter, Outcome, Table
from ..reproduce.chapters import question, read_chapter
from ..results import has_diverged
from ..wording import count
from .drawings import Drawing, drawings
from .front import Bullet, Sentence, bullets, overview, sentences, title
from .provenance import Deviation, commands, deviations


@dataclass(frozen=True)
class Part:
    """A table or figure with its drawings."""

    item: Item
    section: Chapter
    drawings: tuple[Drawing, ...]
    question: tuple[str, str] = ("", "")  # what a check asks, and the answer

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
            (" ".join(v.says), v) for v in self.section.verdicts if v.ours or not self.item.is_papers
        )


@dataclass(frozen=True)
class Content:
    title: str
    version: str
    parts: tuple[Part, ...]
    absent: tuple[str, ...]  # titles of the paper's that have no results yet
    under_way: tuple[tuple[str, str], ...]  # titles, and how far each is
    deviations: tuple[Deviation, ...]
    environments: tuple[tuple[str, int], ...]  # with the number of files from each
    runs: int  # in full
    screened: int  # trained for a few epochs, to choose settings
    time: str  # of training
    sentences: tuple[Sentence, ...]  # of the paper, put to the test
    rerun: tuple[str, ...]
    warnings: tuple[str, ...]
    overview: Table | None  # table 1 of all data
    bullets: tuple[Bullet, ...]
    papers: bool  # something of the paper's is here
    quick: bool  # a quick look is

    @property
    def trained(self) -> str:
        """How many networks, in words; nothing when there are none."""
        parts = [(self.runs, "in full"), (self.screened, "for a few epochs to choose settings")]
        told = [(number, how) for number, how in parts if number]
        if not told:
            return ""
        (first, how), *rest = told
        others = "".join(f" and {number} {how}" for number, how in rest)
        return f"{count(first, 'network')} trained {how}{others}"

    def heading(self, part: Part) -> str:
        """Its title, unless that is the whole page's."""
        return "Results" if part.section.title == self.title else part.section.title

    @property
    def claims(self) -> bool:
        return any(part.section.verdicts for part in self.parts)


def collect(
    items: Sequence[Item], results: Path | None = None, folder: Path = Path("paper"), *, front: bool = True
) -> Content:
    """`folder` has the experiments, and what stands on the first screen, if one is wanted."""
    told = [(item, read_chapter(item)) for item in _protocols(items)]
    present = [(item, section) for item, section in told if not section.empty]
    trained = {r["id"]: r for item, section in present if item.figure is None for r in section.results}
    whole = {name for name, result in trained.items() if not has_diverged(result)}
    screened = {item.table.name: item.table for item, _ in present if item.table.screening_epochs}
    brief = {run.id for table in screened.values() for run in table.screening_runs()}
    brief -= {run.id for item, _ in present for run in item.table.runs}  # which another has in full
    theirs = [item for item, _ in present if item.is_papers or item.is_quick]
    short, wrong = bullets(folder, present, results) if front else ([], [])
    return Content(
        title=title(told),
        version=__version__,
        parts=tuple(
            Part(item, section, tuple(drawings(section)), question(item.file)) for item, section in present
        ),
        absent=tuple(section.title for item, section in told if section.empty and item.is_missed),
        under_way=tuple((s.title, s.under_way) for _, s in present if s.under_way),
        deviations=tuple(deviations(theirs, folder)),
        environments=_environments([r for _, section in present for r in section.results]),
        runs=len(whole - brief),
        screened=len(whole & brief),
        time=_duration(sum(map(_training_seconds, trained.values()))),
        sentences=sentences(present),
        rerun=commands([item for item, _ in present], results),
        warnings=(*dict.fromkeys(w for _, section in told for w in section.warnings), *wrong),
        overview=overview(present),
        bullets=tuple(short),
        papers=any(item.is_papers for item, _ in present),
        quick=any(item.is_quick for item, _ in present),
    )


def _protocols(items: Sequence[Item]) -> list[Item]:
    """As the files have them, and under the clean protocol."""
    held_out = [item.with_protocol("held-out") for item in items]
    return [*items, *(item for item in held_out if item not in items)]


def _environments(results: Sequence[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    found = Counter(
        ", ".join(f"{name} {value}" for name, value in result["environment"].items())
        for result in results
        if "environment" in result
    )
    return tuple(found.most_common())


def _training_seconds(result: dict[str, Any]) -> float:
    """By the median epoch: a machine that slept, or a run that was held, is not training."""
    seconds = result["history"].get("seconds", ())
    return median(seconds) * len(seconds) if seconds else 0.0


def _duration(seconds: float) -> str:
    if seconds > 2 * 3600:
        return f"{seconds / 3600:.0f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds:.0f} seconds"
