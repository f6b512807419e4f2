"""The chosen networks of a table: in one file beside its results, or as folders of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from .. import checkpoint
from ..errors import UsageError
from ..results import neighbours
from ..sweep.experiment import Experiment
from .subject import networks
from .table1 import read_table1

WEIGHTS, CONFIG = "weights.safetensors", "config.json"


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
    chosen = _chosen(table)
    mine = {name: path for name, path in kept.items() if path == file}
    _check_present([name for name in chosen if name not in kept], runs, len(chosen))
    tensors: dict[str, Tensor] = {}
    rest: dict[str, Any] = {}
    for name in (*mine, *(name for name in chosen if name not in kept)):
        found, rest[name] = _read(file, name) if name in mine else checkpoint.load(runs / name / WEIGHTS)
        tensors |= {f"{name}/{key}": tensor for key, tensor in found.items()}
    if rest:
        checkpoint.save(file, tensors, rest)
    return len(rest)


def copy_networks(table: Experiment, runs: Path, folder: Path) -> int:
    """The chosen networks as folders of runs, for other commands; how many there are."""
    chosen, kept = _chosen(table), kept_networks(table.results)
    _check_present([name for name in chosen if name not in kept], runs, len(chosen))
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


def _chosen(table: Experiment) -> list[str]:
    return [network.config.id for network in networks(read_table1(table)[1])]


def _check_present(names: list[str], runs: Path, chosen: int) -> None:
    if away := [name for name in names if not (runs / name / WEIGHTS).exists()]:
        raise UsageError(f"the weights of {len(away)} of {chosen} networks are not in {runs}: {away[0]}")


def _read(file: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(file, framework="pt") as opened:
        mine = [key for key in opened.keys() if key.startswith(f"{name}/")]  # noqa: SIM118
        tensors = {key.removeprefix(f"{name}/"): opened.get_tensor(key) for key in mine}
    return tensors, checkpoint.load_rest(file)[name]
