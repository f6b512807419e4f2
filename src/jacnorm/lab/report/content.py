"""What goes into the page, from experiments/ and results/ alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import __version__
from ..reproduce.catalog import QUICK, QUICK_FOLDER, Item, all_items
from ..reproduce.claims import FAILS, HOLDS, OPEN
from ..reproduce.section import Section
from ..reproduce.tell import tell
from .deviations import Deviation, deviations
from .drawings import Drawing, drawings


@dataclass(frozen=True)
class Part:
    """A table or figure with its drawings."""

    item: Item
    section: Section
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True)
class Content:
    version: str
    parts: tuple[Part, ...]
    absent: tuple[str, ...]  # titles that have no results yet
    deviations: tuple[Deviation, ...]
    environments: tuple[tuple[str, int], ...]  # with the number of files from each
    runs: int
    time: str  # of training
    outcomes: tuple[tuple[int, str], ...]  # how many of the paper's claims hold, do not, cannot be told
    rerun: tuple[str, ...]
    warnings: tuple[str, ...]
    quick: bool  # nothing of the paper's is here


def collect(experiments: Path, results: Path) -> Content:
    told = [(item, tell(item, results)) for item in _items(experiments)]
    present = [(item, section) for item, section in told if not section.empty]
    trained = [r for item, section in present if item.figure is None for r in section.results]
    return Content(
        version=__version__,
        parts=tuple(Part(item, section, tuple(drawings(section))) for item, section in present),
        absent=tuple(section.title for item, section in told if section.empty and _is_papers(item)),
        deviations=tuple(deviations([item for item, _ in present])),
        environments=_environments([r for _, section in present for r in section.results]),
        runs=len(trained),
        time=_duration(sum(sum(result["history"]["seconds"]) for result in trained)),
        outcomes=_outcomes([section for item, section in present if _is_papers(item)]),
        rerun=_commands(present, results),
        warnings=tuple(dict.fromkeys(w for _, section in told for w in section.warnings)),
        quick=bool(present) and all(item.data == QUICK for item, _ in present),
    )


def _items(experiments: Path) -> list[Item]:
    """As the files have them, and under the clean protocol."""
    items = all_items(experiments)
    held_out = [item.with_protocol("held-out") for item in items]
    return items + [item for item in held_out if item not in items]


def _is_papers(item: Item) -> bool:
    """Quick looks and the clean protocol are told of when they are there, and not missed when not."""
    return item.data != QUICK and not item.name.endswith("-held-out")


def _environments(results: Sequence[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    found = Counter(
        ", ".join(f"{name} {value}" for name, value in result["environment"].items())
        for result in results
        if "environment" in result
    )
    return tuple(found.most_common())


def _outcomes(sections: Sequence[Section]) -> tuple[tuple[int, str], ...]:
    found = Counter(v.outcome for section in sections for v in section.verdicts if not v.ours)
    return tuple((found[outcome], outcome) for outcome in (HOLDS, FAILS, OPEN) if found)


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.0f} hours" if seconds > 2 * 3600 else f"{seconds / 60:.0f} minutes"


def _commands(present: Sequence[tuple[Item, Section]], results: Path) -> tuple[str, ...]:
    """What makes this page again from nothing."""
    where = "" if results == Path("results") else f" --results {results}"
    commands = []
    for data, protocol in dict.fromkeys((i.data, i.table.runs[0].protocol) for i, _ in present):
        quick = data == QUICK and results == QUICK_FOLDER / "results"
        which = "--quick" if quick else f"--data {data}{where}"
        how = "" if protocol == "paper" else f" --protocol {protocol}"
        commands.append(f"jacnorm reproduce all {which}{how}")
    return (*commands, f"jacnorm report{where}")
