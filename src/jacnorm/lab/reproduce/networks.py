"""The networks that were chosen in a table: where their weights are, and measuring what is missing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from tqdm import tqdm

from .. import checkpoint
from ..config import RunConfig
from ..data import DataSet, Split, load
from ..errors import UsageError
from ..evaluate.kinds import Trained
from ..nets import is_own
from ..results import append_result, neighbours, read_results, short
from ..run import environment
from ..run_files import load_run
from ..sweep.experiment import Experiment
from ..wording import count
from .figures import FigurePlan
from .runs import Network, Subjects, networks, read_runs, subjects

LOG_SECONDS = 300  # between two lines in a log file
WEIGHTS, CONFIG = "weights.safetensors", "config.json"


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

    def trained(self, config: RunConfig) -> Trained:
        folder = self.folder(config)
        return Trained(folder, config, load_run(folder, config, self.data).to(self.device))


def networks_file(results: Path) -> Path:
    """
    >>> networks_file(Path("paper/table1-kmnist/results.jsonl")).name, networks_file(Path("my.jsonl")).name
    ('networks.safetensors', 'my.safetensors')
    """
    name = results.stem.removeprefix("results")
    changed = f"networks{name}" if name != results.stem else name
    return results.with_name(f"{changed}.safetensors")


def kept_networks(results: Path) -> dict[str, Path]:
    """The file with the weights of each run, by its id: of this experiment, or of one beside it."""
    files = [networks_file(file) for file in (*neighbours(results), results)]
    return {name: file for file in files if file.exists() for name in checkpoint.load_rest(file)}


def keep_networks(table: Experiment, runs: Path) -> int:
    """Put the chosen networks into one file, unless a file beside it has them; how many are in it."""
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


def measure_missing(plan: FigurePlan, table: Experiment, bench: Bench) -> None:
    """Measure what is missing on the networks whose weights are here. Each number is stored at once."""
    found = subjects(plan, table)
    if found.stored.newer:
        return
    if plan.measurement.is_portable:
        _adopt(found)
        _unpack(found, bench)
        found = subjects(plan, table)
    with_rivals = plan.measurement.needs_rivals
    here = [n for n in found.networks if bench.has(n, with_rivals=with_rivals)]
    if away := sum(bool(found.lacking(n)) and n not in here for n in found.networks):
        where = f"the weights of {count(away, 'network')} are not in {bench.runs}"
        print(f"{plan.title}: {where}", file=sys.stderr)
    wanted = [(n, kind) for n in here for kind in found.lacking(n)]
    for network, kind in _watched(plan.title, wanted):
        append_result(plan.results, short(_record(kind, network, plan, bench)))


def _unpack(found: Subjects, bench: Bench) -> None:
    """Weights that are kept beside the table are as good as those in folders of runs."""
    if any(found.lacking(network) for network in found.networks):
        wanted = {network.config.id for network in found.networks}
        for name, file in kept_networks(found.runs.experiment.results).items():
            if name in wanted and not (bench.runs / name).exists():
                unpack(file, name, bench.runs)


def _adopt(found: Subjects) -> None:
    """Take over what another figure beside this one has measured of a network with the same settings.

    The user's own nets are measured again, since their code may have changed.
    """
    for network in found.networks:
        if found.lacking(network) and not is_own(network.config.net):
            files = neighbours(found.plan.results)
            others = (read_results(file).records.get(network.config.id, {}) for file in files)
            if other := next((one for one in others if not found.lacking(network, one)), None):
                append_result(found.plan.results, other)


def _watched(title: str, wanted: list[tuple[Network, str]]) -> Iterator[tuple[Network, str]]:
    """A bar on a terminal; in a log file a line at the start and then every few minutes."""
    if not wanted:
        return
    bar = tqdm(wanted, desc=title, unit=" measurements", dynamic_ncols=True, disable=None)
    said = -math.inf
    for done, (network, kind) in enumerate(bar):
        if bar.disable and time.monotonic() - said > LOG_SECONDS:
            said = time.monotonic()
            print(f"{title}: measuring, {done} of {len(wanted)} done", file=sys.stderr, flush=True)
        bar.set_postfix_str(f"{network.label} s{network.config.seed}, {kind}")
        yield network, kind


def _record(kind: str, network: Network, plan: FigurePlan, bench: Bench) -> dict[str, Any]:
    part = plan.measurement.measure(kind, network, bench)
    settings = {kind: plan.measurement.kinds(network)[kind]}
    head = {"id": network.config.id, "config": network.config.relevant(), "settings": settings}
    return {**head, **part, "environment": environment(bench.device)}
