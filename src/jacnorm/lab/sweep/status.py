"""What a sweep looks like from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import RunConfig
from .naming import names
from .store import Store

Epochs = tuple[tuple[RunConfig, int], ...]  # runs with the epochs they have finished


@dataclass(frozen=True)
class Status:
    done: tuple[RunConfig, ...]
    running: Epochs
    failed: tuple[tuple[RunConfig, str], ...]  # with the last reason
    waiting: Epochs
    diverged: tuple[tuple[RunConfig, str], ...] = ()  # of those that are done, with what happened

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
            waiting.append((config, store.epoch(config)))
    diverged = [(config, what) for config in done if (what := store.divergence(config))]
    return Status(tuple(done), tuple(running), tuple(failed), tuple(waiting), tuple(diverged))
