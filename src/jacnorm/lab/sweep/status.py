"""What a sweep looks like from outside, and while it goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from ..config import RunConfig
from ..results import NewerVersionError
from .store import Store


@dataclass(frozen=True)
class Status:
    done: tuple[RunConfig, ...]
    running: tuple[tuple[RunConfig, int], ...]  # with the epochs they have finished
    failed: tuple[tuple[RunConfig, str], ...]  # with the last reason
    waiting: tuple[RunConfig, ...]

    def __str__(self) -> str:
        total = len(self.done) + len(self.running) + len(self.failed) + len(self.waiting)
        lines = [
            f"{len(self.done)} of {total} runs done, {len(self.running)} running, "
            f"{len(self.waiting)} waiting, {len(self.failed)} failed"
        ]
        lines += [f"  running  {c.id}  epoch {epoch}/{c.epochs}" for c, epoch in self.running]
        lines += [f"  failed   {c.id}  {reason}" for c, reason in self.failed]
        return "\n".join(lines)


def status(store: Store, configs: Sequence[RunConfig]) -> Status:
    done, running, failed, waiting = [], [], [], []
    for config in configs:
        if store.is_done(config):
            done.append(config)
        elif store.is_running(config):
            running.append((config, store.epoch(config)))
        elif store.has_failed(config):
            failed.append((config, store.failures(config)[-1]))
        else:
            waiting.append(config)
    return Status(tuple(done), tuple(running), tuple(failed), tuple(waiting))


class LiveView:
    """An overall bar with the runs under way on a terminal; a line for each run that ends in a log file."""

    def __init__(self, store: Store, configs: Sequence[RunConfig], title: str):
        self._store, self._configs = store, list(configs)
        self._ended: set[str] = set()
        self._drawn = 0.0
        total = sum(c.epochs for c in self._configs)
        self._bar: tqdm[Any] = tqdm(
            total=total, unit=" epochs", desc=title, file=sys.stderr, dynamic_ncols=True, disable=None
        )

    def __enter__(self) -> LiveView:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def watch(self, running: list[RunConfig]) -> None:
        for config in self._configs:
            if config.id not in self._ended and (
                self._store.is_done(config) or self._store.has_failed(config)
            ):
                self._ended.add(config.id)
                self._announce(config)
        if time.monotonic() - self._drawn > 1:
            self._drawn = time.monotonic()
            self._draw(running)

    def _announce(self, config: RunConfig) -> None:
        text, is_trouble = self._ending(config)
        if self._bar.disable:
            print(f"[{len(self._ended)}/{len(self._configs)}] {text}", file=sys.stderr, flush=True)
        elif is_trouble:
            self._bar.write(text, file=sys.stderr)

    def _ending(self, config: RunConfig) -> tuple[str, bool]:
        """How a run ended, and whether a person should know at once."""
        if not self._store.is_done(config):
            return f"failed  {config.id}  {self._store.failures(config)[-1]}", True
        try:
            return f"done    {config.id}  validation loss {self._store.validation_loss(config):.4f}", False
        except NewerVersionError as error:
            return f"done    {config.id}  warning: {error}", True

    def _draw(self, running: list[RunConfig]) -> None:
        under_way = [(c, self._store.epoch(c)) for c in running]
        finished = sum(c.epochs for c in self._configs if c.id in self._ended)
        self._bar.n = finished + sum(epoch for _, epoch in under_way)
        runs = ", ".join(f"{c.method} {c.weight:g} s{c.seed} {epoch}/{c.epochs}" for c, epoch in under_way)
        self._bar.set_postfix_str(f"{len(self._ended)}/{len(self._configs)} runs; {runs}", refresh=False)
        self._bar.refresh()
