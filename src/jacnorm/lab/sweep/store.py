"""What is known of a sweep, on disk: finished runs in the experiment's results, runs under way in runs/.

my.jsonl      a line a finished run: config, metrics of every epoch, environment
runs/RUN/     checkpoint, metrics, log; `lock` is held by the process that trains it
"""

from __future__ import annotations

import fcntl
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from ..checkpoint import write_json
from ..errors import UsageError
from ..nets import build, fingerprint
from ..results import (
    NewerVersionError,
    append_result,
    has_diverged,
    loss,
    neighbours,
    read_results,
    short,
)
from ..run_files import CHANGED_NET, finished_epochs, locked, marked_with, tidy
from ..settings import Settings
from ..wording import count

MAX_ATTEMPTS = 3  # a run that fails is tried twice more


def _is_locked(file: Path) -> bool:
    try:
        with file.open() as opened:  # looking must not make anything
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@dataclass(frozen=True)
class Store:
    results: Path  # the file of one experiment
    runs: Path

    def run_folder(self, config: Settings) -> Path:
        return self.runs / config.id

    def log_file(self, config: Settings) -> Path:
        return self.run_folder(config) / "log.txt"

    def is_done(self, config: Settings) -> bool:
        """One of a newer version is left alone."""
        found = read_results(self.results)
        return config.id in found.records or config.id in found.newer

    def result(self, config: Settings) -> dict[str, Any]:
        found = read_results(self.results)
        if config.id in found.newer:
            raise NewerVersionError(found.newer[config.id])
        return found.records[config.id]

    def fingerprint(self, config: Settings) -> str | None:
        """Of the user's own net that a run was trained with, in full or in part, if that is known."""
        if self.is_done(config):
            return read_results(self.results).records.get(config.id, {}).get("fingerprint")
        return marked_with(self.run_folder(config))

    def publish(self, config: Settings, result: dict[str, Any]) -> None:
        """The history in columns, one number an epoch."""
        history = result["history"]
        # None of a run that diverged at once; and a report of the penalty is not there in every epoch.
        names = [name for name in (history[0] if history else ()) if all(name in epoch for epoch in history)]
        columns = {name: [short(epoch[name]) for epoch in history] for name in names}
        rest = {name: value for name, value in result.items() if name != "history"}
        append_result(self.results, {**rest, "history": columns})

    def adopt(self, config: Settings) -> None:
        """Take over what another experiment beside this one has of the same run, if any does.

        Not of the user's own net: its code may have changed since.
        """
        if self.is_done(config) or config.own_net is not None:
            return
        for file in neighbours(self.results):
            record = read_results(file).records.get(config.id)
            if record is not None and "history" in record:
                append_result(self.results, record)
                return

    def loss(self, config: Settings) -> float:
        return loss(self.result(config), *config.criterion)

    def divergence(self, config: Settings) -> str | None:
        """What happened to a run that is done and has diverged."""
        try:
            result = self.result(config)
        except NewerVersionError:  # not ours to read
            return None
        return result.get("diverged") if has_diverged(result) else None

    def forget_failures(self, config: Settings) -> None:
        (self.run_folder(config) / "failures.json").unlink(missing_ok=True)

    def failures(self, config: Settings) -> list[str]:
        """The reason of each attempt that failed."""
        try:
            reasons: list[str] = json.loads((self.run_folder(config) / "failures.json").read_text())
        except FileNotFoundError:  # asked for in this way, since another sweep may be told to --retry
            return []
        return reasons

    def add_failure(self, config: Settings, reason: str) -> None:
        write_json(self.run_folder(config) / "failures.json", [*self.failures(config), reason])

    def has_failed(self, config: Settings) -> bool:
        return len(self.failures(config)) >= MAX_ATTEMPTS

    def epoch(self, config: Settings) -> int:
        """How many epochs of it are finished."""
        return finished_epochs(self.run_folder(config))

    def is_running(self, config: Settings) -> bool:
        """Or about to: a process takes seconds to begin."""
        return any(_is_locked(self.run_folder(config) / name) for name in ("lock", "starting"))

    def tidy(self, config: Settings) -> None:
        """Remove what one that was killed left half written. Only the process that has the lock may."""
        tidy(self.run_folder(config))

    @contextmanager
    def starting(self, config: Settings) -> Iterator[IO[str]]:
        """A file for a new process to inherit, locked as long as that lives."""
        folder = self.run_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "starting").open("w") as file:
            with suppress(BlockingIOError):  # another sweep is quicker, which the process will find out
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file

    def lock(self, config: Settings) -> AbstractContextManager[bool]:
        """Whether this run is ours to train."""
        return locked(self.run_folder(config))


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


def changed_nets(store: Store, runs: Sequence[Settings]) -> list[str]:
    """A line for each own net that is no longer the one its results are of."""
    lines = []
    for net in dict.fromkeys(run.own_net for run in runs if run.own_net is not None):
        with torch.random.fork_rng():
            now = fingerprint(build(net, (), 0))  # an own net is told nothing of the data
        before = [mark for run in runs if run.own_net == net and (mark := store.fingerprint(run)) is not None]
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
