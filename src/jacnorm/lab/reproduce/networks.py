"""The networks that were chosen in a table: where they are, kept beside it or as folders of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from .. import checkpoint
from ..config import RunConfig
from ..data import DataSet, Split, load
from ..errors import UsageError
from ..nets import Normalized
from ..results import neighbours
from ..run_files import load_run
from ..sweep.experiment import Experiment
from .runs import Runs, read_runs

WEIGHTS, CONFIG = "weights.safetensors", "config.json"


@dataclass(frozen=True)
class Network:
    label: str
    config: RunConfig
    rivals: tuple[RunConfig, ...]  # of the other methods, with the same seed


def networks(runs: Runs, methods: Sequence[str] | None = None) -> tuple[Network, ...]:
    """All networks chosen in a table that have been trained, or those of some methods."""
    labels = list(runs.choices.index)
    trained = sorted(runs.networks["config"], key=lambda config: labels.index(config.label))
    found = []
    for config in trained:
        rivals = tuple(other for other in trained if other.seed == config.seed and other != config)
        found.append(Network(config.label, config, rivals))
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
        return all((self.folder(config) / WEIGHTS).exists() for config in needed)

    def model(self, config: RunConfig) -> Normalized:
        return load_run(self.folder(config), config, self.data).to(self.device)


def networks_file(results: Path) -> Path:
    """
    >>> networks_file(Path("paper/table1-kmnist/results.jsonl")).name, networks_file(Path("my.jsonl")).name
    ('networks.safetensors', 'my.safetensors')
    """
    name = results.stem.removeprefix("results")
    changed = f"networks{name}" if name != results.stem else name
    return results.with_name(f"{changed}.safetensors")


def kept_networks(results: Path) -> dict[str, Path]:
    """By the run's id, the file that has its weights: that of this experiment, or of one beside it."""
    files = [networks_file(file) for file in (*neighbours(results), results)]
    return {name: file for file in files if file.exists() for name in checkpoint.load_rest(file)}


def keep_networks(table: Experiment, runs: Path) -> int:
    """Put the chosen networks into one file, as far as none beside it has them; how many it then has."""
    file, kept = networks_file(table.results), kept_networks(table.results)
    wanted = [name for name in _chosen(table, kept, runs) if name not in kept]
    found = {name: _read(file, name) for name, path in kept.items() if path == file}
    found |= {name: checkpoint.load(runs / name / WEIGHTS) for name in wanted}
    tensors = {f"{name}/{key}": tensor for name, (of, _) in found.items() for key, tensor in of.items()}
    if found:
        checkpoint.save(file, tensors, {name: rest for name, (_, rest) in found.items()})
    return len(found)


def copy_networks(table: Experiment, runs: Path, folder: Path) -> int:
    """The chosen networks as folders of runs, for other commands; how many there are."""
    kept = kept_networks(table.results)
    chosen = _chosen(table, kept, runs)
    for name in chosen:
        if (runs / name / WEIGHTS).exists():
            for part in (WEIGHTS, CONFIG):
                checkpoint.write_atomically(folder / name / part, (runs / name / part).read_bytes())
        else:
            unpack(kept[name], name, folder)
    return len(chosen)


def unpack(file: Path, name: str, folder: Path) -> None:
    tensors, rest = _read(file, name)
    checkpoint.write_json(folder / name / CONFIG, rest["config"])
    checkpoint.save(folder / name / WEIGHTS, tensors, rest)


def _chosen(table: Experiment, kept: dict[str, Path], runs: Path) -> list[str]:
    """The ids; an error if the weights of one are neither kept nor in the folder of runs."""
    chosen = [network.config.id for network in networks(read_runs(table))]
    if away := [name for name in chosen if name not in kept and not (runs / name / WEIGHTS).exists()]:
        raise UsageError(f"the weights of {len(away)} of {len(chosen)} networks are not in {runs}: {away[0]}")
    return chosen


def _read(file: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(file, framework="pt") as opened:
        mine = [key for key in opened.keys() if key.startswith(f"{name}/")]  # noqa: SIM118
        tensors = {key.removeprefix(f"{name}/"): opened.get_tensor(key) for key in mine}
    return tensors, checkpoint.load_rest(file)[name]
