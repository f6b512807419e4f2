"""The state of a sweep on disk: finished runs in the experiment's results, runs in progress in runs/.

my.jsonl      a line for each finished run: config, metrics of every epoch, environment
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
        with file.open() as opened:  # reading must not make a folder
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@dataclass(frozen=True)
class Store:
    results: Path  # the results of one experiment
    runs: Path

    def run_folder(self, config: Settings) -> Path:
        return self.runs / config.id

    def log_file(self, config: Settings) -> Path:
        return self.run_folder(config) / "log.txt"

    def is_done(self, config: Settings) -> bool:
        """Whether the run has a result. One of a newer version counts as well."""
        found = read_results(self.results)
        return config.id in found.records or config.id in found.newer

    def result(self, config: Settings) -> dict[str, Any]:
        found = read_results(self.results)
        if config.id in found.newer:
            raise NewerVersionError(found.newer[config.id])
        return found.records[config.id]

    def fingerprint(self, config: Settings) -> str | None:
        """The fingerprint of the user's own net that a run was trained with, if it is known."""
        if self.is_done(config):
            return read_results(self.results).records.get(config.id, {}).get("fingerprint")
        return marked_with(self.run_folder(config))

    def publish(self, config: Settings, result: dict[str, Any]) -> None:
        """Add a result to the experiment's file.

        Its history is stored in columns, with one number per epoch.
        """
        history = result["history"]
        # A run that diverged at once has no epochs. Reports of the penalty are missing in some epochs.
        names = [name for name in (history[0] if history else ()) if all(name in epoch for epoch in history)]
        columns = {name: [short(epoch[name]) for epoch in history] for name in names}
        rest = {name: value for name, value in result.items() if name != "history"}
        append_result(self.results, {**rest, "history": columns})

    def adopt(self, config: Settings) -> None:
        """Take over the result of the same run from another experiment beside this one, if one has it.

        Runs of the user's own nets are made again, since the code may have changed.
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
        """Why a finished run diverged; None if it did not."""
        try:
            result = self.result(config)
        except NewerVersionError:  # this version cannot read it
            return None
        return result.get("diverged") if has_diverged(result) else None

    def forget_failures(self, config: Settings) -> None:
        (self.run_folder(config) / "failures.json").unlink(missing_ok=True)

    def failures(self, config: Settings) -> list[str]:
        """The reason of each attempt that failed."""
        try:
            reasons: list[str] = json.loads((self.run_folder(config) / "failures.json").read_text())
        except FileNotFoundError:  # not checked before, since another sweep may delete it at any time
            return []
        return reasons

    def add_failure(self, config: Settings, reason: str) -> None:
        write_json(self.run_folder(config) / "failures.json", [*self.failures(config), reason])

    def has_failed(self, config: Settings) -> bool:
        return len(self.failures(config)) >= MAX_ATTEMPTS

    def epoch(self, config: Settings) -> int:
        """How many epochs of a run are finished."""
        return finished_epochs(self.run_folder(config))

    def is_running(self, config: Settings) -> bool:
        """Whether a run is running.

        One that is about to start counts as well, since a process takes seconds to start.
        """
        return any(_is_locked(self.run_folder(config) / name) for name in ("lock", "starting"))

    def tidy(self, config: Settings) -> None:
        """Remove the half-written files of a process that was killed. Call this only with the lock."""
        tidy(self.run_folder(config))

    @contextmanager
    def starting(self, config: Settings) -> Iterator[IO[str]]:
        """A locked file for a new process to inherit. The lock lasts as long as the process."""
        folder = self.run_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "starting").open("w") as file:
            with suppress(BlockingIOError):  # another sweep was faster. The process will notice
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file

    def lock(self, config: Settings) -> AbstractContextManager[bool]:
        """Lock a run. Yields whether we got the lock."""
        return locked(self.run_folder(config))


def check_writable(store: Store) -> None:
    """Check by writing a file. Permissions do not show whether a disk is full or read-only."""
    for folder in (store.runs, store.results.parent):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"room for a file?")
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written to ({error.strerror})") from error


def check_readable(store: Store) -> None:
    """Check that results and runs can be read. If they do not exist yet, they count as empty."""
    read_results(store.results)
    try:
        list(store.runs.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"{store.runs}: cannot be read ({error.strerror})") from error


def changed_nets(store: Store, runs: Sequence[Settings]) -> list[str]:
    """A line for each net of the user that has changed since its results were made."""
    lines = []
    for net in dict.fromkeys(run.own_net for run in runs if run.own_net is not None):
        with torch.random.fork_rng():
            now = fingerprint(build(net, (), 0))  # the user's net is built without data
        before = [mark for run in runs if run.own_net == net and (mark := store.fingerprint(run)) is not None]
        if others := [mark for mark in before if mark != now]:
            lines.append(
                f"{net}: {count(len(others), 'run')} in {store.results} and {store.runs} had another net of "
                f"this name: {CHANGED_NET}, or move those runs and their results away"
            )
    return lines


def damaged(store: Store) -> list[str]:
    """One line for each result that cannot be used."""
    found = read_results(store.results)
    return [*(f"{text}; its run is made again" for text in found.damaged), *found.newer.values()]
