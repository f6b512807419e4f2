"""The loop over many runs, whoever trains them: workers on this machine or on many."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..config import RunConfig
from .store import Store

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Ending:
    """How a worker ended. Without a reason nothing is counted: its run is done, or not its own just now."""

    reason: str | None = None


class Worker(Protocol):
    """One run under way."""

    @property
    def config(self) -> RunConfig: ...

    def poll(self) -> Ending | None:
        """None while it runs."""

    def stop(self) -> None:
        """End it now, if it has not ended; its checkpoint stays."""


@dataclass
class Pool(ABC):
    """Runs that another sweep has in hand are waited for, not repeated."""

    store: Store
    data_root: Path | None = None
    device: str = "cpu"

    @abstractmethod
    def _slots(self) -> int:
        """How many runs there is room for, running ones included."""

    @abstractmethod
    def _start(self, config: RunConfig) -> Worker: ...

    def run_all(self, configs: Iterable[RunConfig], watch: Callable[[list[RunConfig]], None]) -> None:
        """Until every run is done or has failed for good. `watch` sees what is running, again and again."""
        waiting = self._to_do(configs)
        running: list[Worker] = []
        try:
            while waiting or running:
                polled = [(w, w.poll()) for w in running]  # once: one that ends right now must not be in both
                running = [w for w, ending in polled if ending is None]
                ended = [self._counted(w, ending) for w, ending in polled if ending is not None]
                waiting = self._to_do(waiting + ended)
                while waiting and len(running) < self._slots() and (config := self._next(waiting)):
                    waiting.remove(config)
                    running.append(self._start(config))
                watch([w.config for w in running])
                time.sleep(POLL_SECONDS)
        finally:
            for worker in running:
                worker.stop()

    def _next(self, waiting: list[RunConfig]) -> RunConfig | None:
        return next((c for c in waiting if not self.store.is_running(c)), None)

    def _to_do(self, configs: Iterable[RunConfig]) -> list[RunConfig]:
        """Neither done nor given up, here or by another sweep."""
        return [c for c in configs if not self.store.is_done(c) and not self.store.has_failed(c)]

    def _counted(self, worker: Worker, ending: Ending) -> RunConfig:
        if ending.reason is not None:
            self.store.add_failure(worker.config, ending.reason)
        return worker.config
