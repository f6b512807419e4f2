"""Which experiment files make up the paper's table and figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError
from ..sweep.experiment import Experiment, read_experiment
from .claims import read_claims
from .plan import FigurePlan, read_figure

ITEMS = ("table1", "figure3", "figure4", "figure5")
QUICK = "digits"  # the data of a quick look: the whole chain, and no reproduction
QUICK_FOLDER = Path("runs/quick")  # where it goes
ORDER = ("kmnist", "fashion-mnist", "cifar10")  # from quick to slow


@dataclass(frozen=True)
class Item:
    """A table, or a figure about the networks of a table."""

    table: Experiment
    figure: FigurePlan | None = None

    @property
    def name(self) -> str:
        return self.table.name if self.figure is None else self.figure.name

    @property
    def data(self) -> str:
        return self.table.runs[0].data

    def with_protocol(self, protocol: str) -> Item:
        """The same with networks that were chosen under another protocol, and results of their own."""
        table = self.table.with_protocol(protocol)
        if table == self.table or self.figure is None:
            return Item(table, self.figure)
        name, title = f"{self.figure.name}-{protocol}", f"{self.figure.title}, {protocol}"
        return Item(table, replace(self.figure, name=name, title=title))


def find_items(folder: Path, name: str, data: str | None = None) -> list[Item]:
    """The files ITEM-DATA.toml of one item or of all, quick looks only when asked for."""
    files = _item_files(folder, name)
    chosen = [file for file in files if _data(file) == data or (data is None and _data(file) != QUICK)]
    if not chosen:
        there = ", ".join(dict.fromkeys(map(_data, files))) or "none"
        raise UsageError(f"{folder} has no file for {name} on {data}; there are: {there}")
    return [_read(folder, file) for file in chosen]


def all_items(folder: Path) -> list[Item]:
    return [_read(folder, file) for file in _item_files(folder, "all")]


def _item_files(folder: Path, name: str) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder; run this in a checkout, or name its experiments with "
            "--experiments"
        )
    return [file for item in (ITEMS if name == "all" else (name,)) for file in _files(folder, item)]


def _files(folder: Path, item: str) -> list[Path]:
    def rank(file: Path) -> tuple[int, str]:
        data = _data(file)
        return (ORDER.index(data) if data in ORDER else len(ORDER), data)

    return sorted(folder.glob(f"{item}-*.toml"), key=rank)


def _data(file: Path) -> str:
    return file.stem.partition("-")[2]


def _read(folder: Path, file: Path) -> Item:
    figure = None if file.stem.startswith("table") else read_figure(file)
    table = read_experiment(file if figure is None else folder / f"{figure.networks}.toml")
    read_claims(file, table.claims)  # mistakes are told now, not after days of training
    return Item(table, figure)
