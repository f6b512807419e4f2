"""The networks that a figure is about, and what they are measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch

from ..config import RunConfig, make_config
from ..data import DataSet, Split, load
from ..nets import Normalized
from ..run_files import load_run
from .chapter import Groups, Quantities, Table
from .choice import Choice


@dataclass(frozen=True)
class Network:
    label: str
    config: RunConfig
    rivals: tuple[RunConfig, ...]  # of the other methods, with the same seed


def networks(choices: Sequence[Choice], methods: Sequence[str] | None = None) -> tuple[Network, ...]:
    """All networks chosen in a table that have been trained, or those of some methods."""
    trained = [(c.label, make_config(run["config"])) for c in choices for run in c.runs.values()]
    found = []
    for label, config in trained:
        rivals = tuple(other for _, other in trained if other.seed == config.seed and other != config)
        found.append(Network(label, config, rivals))
    return tuple(n for n in found if methods is None or n.label in methods)


@dataclass(frozen=True)
class Bench:
    """Where networks are measured: a data set, a folder of runs, a device."""

    data_name: str
    runs: Path
    data_root: Path | None
    device: torch.device

    @cached_property
    def data(self) -> DataSet:
        return load(self.data_name, self.data_root)

    def test(self, images: int) -> Split:
        test = self.data.test
        return Split(test.images[:images], test.labels[:images]).to(self.device)

    def folder(self, config: RunConfig) -> Path:
        return self.runs / config.id

    def has(self, network: Network, *, with_rivals: bool) -> bool:
        needed = (network.config, *(network.rivals if with_rivals else ()))
        return all((self.folder(config) / "weights.safetensors").exists() for config in needed)

    def model(self, config: RunConfig) -> Normalized:
        return load_run(self.folder(config), config, self.data).to(self.device)


class Measurement(Protocol):
    """What a figure measures: its settings, how, and what is told of it."""

    @property
    def methods(self) -> tuple[str, ...] | None:
        """The methods whose networks it needs; None is all of them."""

    @property
    def needs_rivals(self) -> bool:
        """Whether a network is measured beside those of the other methods."""

    @property
    def is_portable(self) -> bool:
        """Whether its numbers are the same on any machine, so that other figures may take them over."""

    def kinds(self, network: Network) -> dict[str, dict[str, Any]]:
        """Each thing to measure on a network, with all that its numbers depend on."""

    def measure(self, kind: str, network: Network, bench: Bench) -> dict[str, Any]:
        """One of them, as a part of the network's record."""

    def notes(self, groups: Groups) -> tuple[str, ...]: ...

    @property
    def units(self) -> Mapping[str, str]:
        """Of each quantity, as it stands after a difference."""

    def quantities(self, groups: Groups) -> Quantities:
        """By name. What has no records is not left out, but has no values."""

    def tables(self, groups: Groups) -> tuple[Table, ...]: ...
