"""What can be told before hours of training: folders, names, nets whose code has changed, damaged files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence

import torch

from ..classification import check_start
from ..config import RunConfig
from ..data import DataSet
from ..data.catalog import SETS
from ..errors import UsageError
from ..nets import NETS, NetError, build, fingerprint, is_own
from ..results import read_results
from ..run_files import CHANGED_NET
from ..wording import count, did_you_mean
from .store import Store


def check_writable(store: Store) -> None:
    """By writing: permissions do not tell of read-only disks or full ones."""
    for folder in (store.runs, store.results.parent):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"room for a file?")
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written to ({error.strerror})") from error


def check_readable(store: Store) -> None:
    """What is not there yet is empty."""
    read_results(store.results)
    try:
        list(store.runs.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{store.runs}: cannot be read ({error.strerror})") from error


def check_names(runs: Iterable[RunConfig]) -> None:
    """Of data sets and nets; a user's own nets are not looked for."""
    for run in runs:
        if run.data not in SETS:
            raise UsageError(f"there is no data set {run.data!r}: {did_you_mean(run.data, SETS)}")
        if run.net not in NETS and not is_own(run.net):
            raise NetError(
                f"there is no net {run.net!r}: {did_you_mean(run.net, NETS)}, or package.module:factory"
            )


def check_nets(runs: Iterable[RunConfig], data: DataSet) -> None:
    """Each can be built and takes these images: told once here, not three times by each run."""
    for run in {(run.net, run.width): run for run in runs if run.data == data.name}.values():
        check_start(run, data)


def changed_nets(store: Store, runs: Sequence[RunConfig]) -> list[str]:
    """A line for each own net that is no longer the one its results are of."""
    lines = []
    for net in dict.fromkeys(run.net for run in runs if is_own(run.net)):
        with torch.random.fork_rng():
            now = fingerprint(build(net, 0, 0, 0))  # an own net is told nothing of the data
        before = [mark for run in runs if run.net == net and (mark := store.fingerprint(run)) is not None]
        if others := [mark for mark in before if mark != now]:
            lines.append(
                f"{net}: {count(len(others), 'run')} in {store.results} and {store.runs} had another net of "
                f"this name: {CHANGED_NET}, or move those runs and their results away"
            )
    return lines


def damaged(store: Store) -> list[str]:
    """A line for each result that is there and cannot be used."""
    found = read_results(store.results)
    return [*(f"{text}; its run is made again" for text in found.damaged), *found.newer.values()]
