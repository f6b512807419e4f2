"""Experiment files: the paper's table and figures, and users' own; and the chapter about each.

The `remarks` of a file are paragraphs that people wrote, with numbers that are computed:

{accuracy: spectral}                                  a mean over seeds, of this experiment
{accuracy: spectral - weight-decay}                   a mean difference, over the seeds that both have
{judge@../figure3-kmnist: none}                       of another experiment, by a path from this file
{-noise: none}, {error%: random-round}                with the other sign; in percent
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path

from ..claims import Quantities
from ..config import LABELS, ConfigError, read_toml
from ..errors import UsageError
from ..results import experiment_file, experiment_name, results_file, written_at
from ..sweep.experiment import Experiment, read_experiment
from ..tasks.chapter import chapter as of_trials
from ..wording import NOTHING, did_you_mean, plain
from .chapter import Chapter
from .figures import FigurePlan, figure, read_figure
from .measurement import as_frame
from .table1 import table1

ITEMS = ("table1", "figure3", "figure4", "figure5")
QUICK = "digits"  # the data of a quick look: the whole chain, and no reproduction
QUICK_FOLDER = Path("runs/quick")  # where it goes
FUTURE = "future"  # the folder of what the paper leaves to others
FORMS = (  # in a folder of experiments
    "*/experiment.toml",
    *("*.toml", "checks/*.toml", f"{FUTURE}/*.toml", "quick/*.toml"),
)
PAGE = "page.toml"  # no experiment: texts for the page of all experiments
ORDER = ("kmnist", "fashion-mnist", "cifar10")  # from quick to slow

NUMBER = re.compile(r"\{(-?)([\w-]+)(%?)(?:@([\w./-]+))?: ([\w-]+)(?: - ([\w-]+))?\}")
TWO_DIGITS = {"accuracy", "best_accuracy", "late_accuracy", "paper", "sigma", "first_order", "time"}


@dataclass(frozen=True)
class Item:
    """A table, or a figure about the networks of a table."""

    file: Path
    table: Experiment
    figure: FigurePlan | None = None
    folder: Path | None = None  # of results, unless they are beside the experiments

    @property
    def name(self) -> str:
        return self.table.name if self.figure is None else self.figure.name

    @property
    def data(self) -> str:
        return str(self.table.runs[0].source)

    @property
    def question(self) -> tuple[str, str]:
        return question(self.file)

    @property
    def has_results(self) -> bool:
        return bool(written_at((self.figure or self.table).results))

    @property
    def table_file(self) -> Path:
        return self.file if self.figure is None else self.figure.networks

    @property
    def is_papers(self) -> bool:
        """It is one of the paper's own table and figures, and the paper has numbers to compare with."""
        return bool(self.table.paper) and self.name.startswith(tuple(f"{item}-" for item in ITEMS))

    @property
    def is_missed(self) -> bool:
        """Whether the page says that it is missing. The clean protocol is optional."""
        return self.is_papers and not self.name.endswith("-held-out")

    @property
    def is_quick(self) -> bool:
        return not self.is_papers and self.name in {f"{item}-{QUICK}" for item in ITEMS}

    @property
    def is_future(self) -> bool:
        return self.file.parent.name == FUTURE

    def with_protocol(self, protocol: str) -> Item:
        """The same with networks chosen under another protocol. Their results are in other files."""
        table = self.table.with_protocol(protocol)
        if table == self.table or self.figure is None:
            return replace(self, table=table)
        return replace(self, table=table, figure=self.figure.with_protocol(protocol))


def question(file: Path) -> tuple[str, str]:
    """The first line of an experiment's file: what it asks, and the answer, if it has one."""
    first = file.read_text(encoding="utf-8").split("\n", 1)[0]
    asked, mark, answer = first.removeprefix("# ").partition("? ")
    return (f"{asked}?", answer) if first.startswith("# ") and mark else ("", "")


def foreword(file: Path) -> tuple[str, ...]:
    """The comment at the beginning of a file, as paragraphs. The first line, what is expected, and what would
    be against it are paragraphs of their own.
    """
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    first, *rest = (line.lstrip("#").strip() for line in lines)
    text = "\n".join((first, "", *rest))
    text = re.sub(r"\n(Expected|Against it):", r"\n\n**\1:**", text)
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def find_items(folder: Path, name: str, data: str | None = None, results: Path | None = None) -> list[Item]:
    """The experiments ITEM-DATA of one item or of all, quick looks only when asked for."""
    files = _files(folder, ITEMS if name == "all" else (name,))
    chosen = [file for file in files if _data(file) == data or (data is None and _data(file) != QUICK)]
    if not chosen:
        there = ", ".join(dict.fromkeys(map(_data, files))) or "none"
        raise UsageError(f"{folder} has no file for {name} on {data}; there are: {there}")
    return [read_item(file, results) for file in chosen]


def all_items(folder: Path, results: Path | None = None) -> list[Item]:
    """First the paper's in its order, then all others. A table stands before the figures about it."""
    files = _files(folder, ITEMS)
    others = [read_item(file, results) for file in _experiments(folder) if file not in files]
    order = sorted(others, key=lambda item: (item.table.name, item.figure is not None, item.name))
    return [*(read_item(file, results) for file in files), *order]


def read_item(file: Path, results: Path | None = None) -> Item:
    """A figure names its number and its networks; other files are tables."""
    figure = read_figure(file, results) if {"figure", "networks"} & set(read_toml(file)) else None
    table = read_experiment(file if figure is None else figure.networks, results)
    if figure is not None:
        _check_claims(file, figure, table)
    return Item(file, table, figure, results)


def _check_claims(file: Path, figure: FigurePlan, table: Experiment) -> None:
    """A misspelled method or quantity would never be tested, and nobody would notice."""
    for name in figure.measurement.methods or ():
        if name not in LABELS:
            raise ConfigError(f"{file}: [measure] methods: {name!r}: {did_you_mean(name, LABELS)}")
    nothing = as_frame({label: [] for label in table.labels})
    measured = figure.quantities(nothing, nothing)
    for claim in figure.claims:
        for quantity in claim.quantities:
            if quantity not in measured:
                raise ConfigError(f"{file}: quantity = {quantity!r}: {did_you_mean(quantity, measured)}")
        for name in claim.named or (measured[claim.quantity] if claim.rises_with else ()):
            for quantity in claim.quantities:
                if name not in (known := list(measured[quantity])):
                    wrong = f"{quantity} is not known of {name!r}"
                    raise ConfigError(f"{file}: {wrong}: {did_you_mean(name, known)}")


def _experiments(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder; run this in a checkout, or name its experiments with "
            "--experiments; for an experiment of your own: jacnorm report FILE"
        )
    return [file for form in FORMS for file in sorted(folder.glob(form)) if file.name != PAGE]


def _files(folder: Path, items: Sequence[str]) -> list[Path]:
    """Item by item, each from quick data to slow."""
    rank = {data: i for i, data in enumerate(ORDER)}
    quick_first = lambda file: (rank.get(_data(file), len(rank)), _data(file))
    every = sorted(_experiments(folder), key=quick_first)
    return [file for item in items for file in every if experiment_name(file).startswith(f"{item}-")]


def _data(file: Path) -> str:
    return experiment_name(file).partition("-")[2]


def read_chapter(item: Item) -> Chapter:
    chapter = _chapter(item)

    def quantities_of(name: str) -> Quantities:
        other = experiment_file(item.file, name)
        return quantities_in(other, item.folder) if name else chapter.quantities

    paragraphs = read_toml(item.file).get("remarks", "").split("\n\n")
    whole = [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip()]
    remarks = tuple(with_numbers(text, item.file, quantities_of) for text in whole)
    return replace(chapter, remarks=remarks)


def quantities_in(file: Path, folder: Path | None) -> Quantities:
    """The quantities of the experiment in a file; empty if there is no such file."""
    if not file.exists():
        return {}
    return _quantities(file, folder, *written_at(results_file(file, folder)))


@lru_cache
def _quantities(file: Path, folder: Path | None, *_written: int) -> Quantities:
    """Computed once, since prose has many numbers."""
    return _chapter(read_item(file, folder)).quantities


def _chapter(item: Item) -> Chapter:
    return chapter_of(item.table) if item.figure is None else figure(item.figure, item.table)


def chapter_of(experiment: Experiment) -> Chapter:
    is_papers = experiment.runs[0].task == "classification"
    return table1(experiment) if is_papers else of_trials(experiment)


def with_numbers(text: str, file: Path, quantities_of: Callable[[str], Quantities]) -> str:
    def number(match: re.Match[str]) -> str:
        sign, quantity, percent, experiment, a, b = match.groups()
        of = quantities_of(experiment or "").get(quantity)
        if of is None or of.columns.empty:
            return NOTHING
        if absent := [name for name in (a, b) if name and name not in of]:
            raise ConfigError(f"{file}: {match[0]}: {quantity} is not known of {absent[0]!r}")
        mean = (of[a] - of[b] if b else of[a]).mean() * (-1 if sign else 1) * (100 if percent else 1)
        if percent and not math.isnan(mean):
            return f"{mean:.3g}"
        return plain(mean, 2 if quantity in TWO_DIGITS else 1)

    return NUMBER.sub(number, text)


def sweep_as_text(experiment: Experiment, file: Path, results: Path | None) -> str:
    """The table that a sweep is for, and the command that makes a page of it."""
    where = "" if results is None else f" --results {results}"
    return f"{chapter_of(experiment).text()}\nAs a page: jacnorm report {file}{where}"
