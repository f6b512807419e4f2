"""A whole experiment: checks before it, its runs in one or two stages, and its progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...errors import JacnormError
from ..errors import UsageError
from ..nets import NetError
from ..progress import duration
from ..results import NewerVersionError
from ..run import task_of
from ..settings import Settings
from ..wording import count
from .experiment import Experiment, names, unique
from .pool import Pool
from .store import Store, changed_nets, check_writable, damaged


class SweepError(JacnormError):
    """Some runs failed for good."""


Epochs = tuple[tuple[Settings, int], ...]  # runs in progress, each with its finished epochs


@dataclass(frozen=True)
class Status:
    done: tuple[Settings, ...]
    running: Epochs
    failed: tuple[tuple[Settings, str], ...]  # failed runs, each with its last reason
    waiting: Epochs
    diverged: tuple[tuple[Settings, str], ...] = ()  # among the done ones, each with its message

    def __str__(self) -> str:
        others = [c for c, _ in (*self.running, *self.failed, *self.waiting)]
        called = {c: f"{name} ({c})" for c, name in names([*self.done, *others]).items()}
        lines = [
            f"{len(self.done)} of {len(self.done) + len(others)} runs done, {len(self.running)} running, "
            f"{len(self.waiting)} waiting, {len(self.failed)} failed"
            + (f", {len(self.diverged)} of those done diverged" if self.diverged else "")
        ]
        lines += [f"  running  {called[c.id]}  epoch {epoch}/{c.epochs}" for c, epoch in self.running]
        lines += [
            f"  waiting  {called[c.id]}  epoch {epoch}/{c.epochs}" for c, epoch in self.waiting if epoch
        ]
        lines += [f"  failed   {called[c.id]}  {reason}" for c, reason in self.failed]
        lines += [f"  diverged {called[c.id]}  {reason}" for c, reason in self.diverged]
        return "\n".join(lines)


def status(store: Store, configs: Sequence[Settings]) -> Status:
    done, running, failed, waiting = [], [], [], []
    for config in configs:
        if store.is_done(config):
            done.append(config)
        elif store.is_running(config):
            running.append((config, store.epoch(config)))
        elif store.has_failed(config):
            failed.append((config, store.failures(config)[-1]))
        else:
            waiting.append((config, store.epoch(config)))
    diverged = [(config, what) for config in done if (what := store.divergence(config))]
    return Status(tuple(done), tuple(running), tuple(failed), tuple(waiting), tuple(diverged))


LOG_SECONDS = 60  # least time between two lines about runs under way in a log file


class LiveView:
    """On a terminal one bar with the runs under way; in a log file a line for each finished run."""

    def __init__(self, store: Store, configs: Sequence[Settings], title: str):
        self._store, self._configs, self._names = store, list(configs), names(configs)
        self._ended = {config.id for config in self._configs if store.is_done(config)}
        self._begun = self._said = time.monotonic()
        self._drawn = 0.0
        self._kept = sum(c.epochs if self._has_ended(c) else store.epoch(c) for c in self._configs)
        self._bar: tqdm[Any] = tqdm(
            total=sum(c.epochs for c in self._configs),
            initial=self._kept,
            unit=" epochs",
            desc=title,
            file=sys.stderr,
            dynamic_ncols=True,
            disable=None,
        )
        self._begin(title)

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *_: object) -> None:
        self._draw([])
        self._bar.close()

    def watch(self, running: list[Settings]) -> None:
        for config in self._configs:
            if config.id not in self._ended and self._has_ended(config):
                self._ended.add(config.id)
                self._announce(config)
        if time.monotonic() - self._drawn > 1:
            self._drawn = time.monotonic()
            self._draw(running)
        if self._bar.disable and time.monotonic() - self._said > LOG_SECONDS:
            self._say(self._progress(running))

    def _begin(self, title: str) -> None:
        """Count runs that were finished before, and report their problems."""
        if self._bar.disable:
            already = f", {len(self._ended)} already done" if self._ended else ""
            self._say(f"{title}: {count(len(self._configs), 'run')}{already}")
        for line in damaged(self._store):
            self._say(f"warning: {line}")

    def _say(self, line: str) -> None:
        self._said = time.monotonic()
        self._bar.write(line, file=sys.stderr)
        sys.stderr.flush()

    def _announce(self, config: Settings) -> None:
        text, is_trouble = self._ending(config)
        if self._bar.disable:
            self._say(f"[{len(self._ended)}/{len(self._configs)}] {text}")
        elif is_trouble:
            self._say(text)

    def _ending(self, config: Settings) -> tuple[str, bool]:
        """How a run ended, and whether to report it at once."""
        name = f"{self._names[config.id]} ({config.id})"
        if not self._store.is_done(config):
            return f"failed  {name}  {self._store.failures(config)[-1]}", True
        try:
            if what := self._store.divergence(config):
                return f"done    {name}  diverged: {what}", True
            quantity, sign = config.criterion
            found = sign * self._store.loss(config)
            return f"done    {name}  {quantity.replace('_', ' ')} {found:.4f}", False
        except NewerVersionError as error:
            return f"done    {name}  warning: {error}", True

    def _draw(self, running: list[Settings]) -> None:
        self._bar.n = self._epochs()
        self._bar.set_postfix_str(self._words(running), refresh=False)
        self._bar.refresh()

    def _progress(self, running: list[Settings]) -> str:
        epochs, total = self._epochs(), sum(c.epochs for c in self._configs)
        new, seconds = epochs - self._kept, time.monotonic() - self._begun
        left = f", about {duration(seconds / new * (total - epochs))} left" if new > 0 else ""
        return f"{epochs} of {total} epochs{left}; {self._words(running)}"

    def _words(self, running: list[Settings]) -> str:
        under_way = [c for c in running if c.id not in self._ended]  # the process may end right now
        runs = ", ".join(f"{self._names[c.id]} {self._store.epoch(c)}/{c.epochs}" for c in under_way)
        return f"{len(self._ended)}/{len(self._configs)} runs; {runs}"

    def _has_ended(self, config: Settings) -> bool:
        return self._store.is_done(config) or self._store.has_failed(config)

    def _epochs(self) -> int:
        """The number of finished epochs of all runs. Each run is counted once."""
        return sum(c.epochs if c.id in self._ended else self._store.epoch(c) for c in self._configs)


def train_all(experiment: Experiment, pool: Pool) -> Status:
    check_writable(pool.store)
    check_nets(experiment.runs, pool.data_root, pool.store.runs)
    if changed := changed_nets(pool.store, experiment.all_runs):
        raise UsageError(changed[0])
    try:
        return sweep(experiment, pool)
    except KeyboardInterrupt:
        print("\nWhat is finished is kept; go on with the same command.")
        raise


def sweep(experiment: Experiment, pool: Pool) -> Status:
    """Train the missing runs. Returns the status of all runs."""
    if experiment.screening_epochs is None:
        return _stage(experiment.title, experiment.runs, pool)
    if coming := to_come(experiment, pool.store):
        print(f"{experiment.title}, stage 1 of 2; {coming}", file=sys.stderr, flush=True)
    first = _stage(f"{experiment.title}, screening", experiment.screening_runs(), pool)
    losses = {config.id: pool.store.loss(config) for config in first.done}
    if not (chosen := experiment.chosen_runs(losses)):
        print("No setting is left to train in full.", file=sys.stderr)
        return first
    _stage(f"{experiment.title}, chosen", chosen, pool)
    return status(pool.store, unique((*experiment.screening_runs(), *chosen)))


def known_runs(experiment: Experiment, store: Store) -> tuple[Settings, ...]:
    """The runs that are known to be needed at this point."""
    if experiment.screening_epochs is None:
        return experiment.runs
    first = experiment.screening_runs()
    if not _is_over(first, store):
        return first
    losses = {config.id: store.loss(config) for config in first if store.is_done(config)}
    return unique((*first, *experiment.chosen_runs(losses)))


def to_come(experiment: Experiment, store: Store) -> str:
    """Text on the runs that follow those that are known now; empty if there are none."""
    if experiment.screening_epochs is None or _is_over(experiment.screening_runs(), store):
        return ""
    # As many as there are if no run diverges.
    second = experiment.chosen_runs({run.id: 0.0 for run in experiment.screening_runs()})
    runs, epochs = count(len(second), "run"), count(experiment.runs[0].epochs, "epoch")
    return f"a second stage follows: the best of each method in full, {runs} of {epochs}"


def forget_failures(experiment: Experiment, store: Store) -> None:
    """Forget failures, so that the next sweep tries these runs again."""
    for config in known_runs(experiment, store):
        store.forget_failures(config)


def _is_over(stage: tuple[Settings, ...], store: Store) -> bool:
    return all(store.is_done(config) or store.has_failed(config) for config in stage)


def _stage(title: str, runs: tuple[Settings, ...], pool: Pool) -> Status:
    for config in runs:
        pool.store.adopt(config)
    with LiveView(pool.store, runs, title) as view:
        pool.run_all(runs, view.watch)
        view.watch([])
    return status(pool.store, runs)


def check_names(runs: Iterable[Settings]) -> None:
    """Check that data sets, nets and environments exist. A user's own nets are not looked for."""
    for run in {(*run.architecture, run.source): run for run in runs}.values():
        task_of(run).check_names(run)


def check_nets(runs: Sequence[Settings], data_root: Path | None, folder: Path) -> None:
    """Download once, before many processes start. Check that each net can be built and takes the data, so
    that a mistake is reported once and not by every run.
    """
    for source, one in {run.source: run for run in runs}.items():
        data = task_of(one).load(one, data_root, folder)
        for run in {run.architecture: run for run in runs if run.source == source}.values():
            task_of(run).check_start(run, data)


def warn_of_nets(experiment: Experiment, store: Store) -> None:
    try:
        warn(changed_nets(store, experiment.all_runs))
    except NetError as error:  # the code of a net is not needed to look at results
        warn([str(error)])


def warn(lines: Iterable[str]) -> None:
    for line in lines:
        print(f"warning: {line}", file=sys.stderr)


def check_failed(runs: int) -> None:
    if runs:
        raise SweepError(f"{count(runs, 'run')} failed; fix the cause, then continue with --retry")
