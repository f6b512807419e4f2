"""Runs on this machine: a few processes at a time, each with one run and one thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..config import RunConfig
from .store import Store
from .worker import LOCKED_ELSEWHERE, order

POLL_SECONDS = 0.2


@dataclass
class Worker:
    config: RunConfig
    process: subprocess.Popen[str]
    log: IO[str]

    def close(self) -> None:
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.log.close()


@dataclass
class LocalEngine:
    """`workers` processes; runs that another sweep has in hand are waited for, not repeated."""

    store: Store
    workers: int
    data_root: Path | None = None
    device: str = "cpu"
    threads: int = 1

    def run_all(self, configs: Iterable[RunConfig], watch: Callable[[list[RunConfig]], None]) -> None:
        """Until every run is done or has failed for good. `watch` sees what is running, again and again."""
        waiting = [c for c in configs if not self.store.is_done(c) and not self.store.has_failed(c)]
        running: list[Worker] = []
        try:
            while waiting or running:
                running, ended = _split(running)
                for worker in ended:
                    if self._must_go_on(worker):
                        waiting.append(worker.config)
                waiting = [c for c in waiting if not self.store.is_done(c)]
                while waiting and len(running) < self.workers and (config := self._next(waiting)):
                    waiting.remove(config)
                    running.append(self._start(config))
                watch([w.config for w in running])
                time.sleep(POLL_SECONDS)
        finally:
            for worker in running:
                worker.process.kill()
                worker.close()

    def _next(self, waiting: list[RunConfig]) -> RunConfig | None:
        return next((c for c in waiting if not self.store.is_running(c)), None)

    def _start(self, config: RunConfig) -> Worker:
        folder = self.store.run_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / "log.txt").open("a")
        process = subprocess.Popen(
            [sys.executable, "-m", "jacnorm.lab.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
        )
        assert process.stdin is not None
        process.stdin.write(order(config, self.store, self.data_root, self.device, self.threads) + "\n")
        process.stdin.flush()  # and left open: the worker ends when it closes
        return Worker(config, process, log)

    def _must_go_on(self, worker: Worker) -> bool:
        """Whether a worker that has ended leaves its run to be tried again."""
        code = worker.process.returncode
        if code == 0:
            return False
        if code != LOCKED_ELSEWHERE:
            log = self.store.run_folder(worker.config) / "log.txt"
            self.store.add_failure(worker.config, _reason(code, log))
        return not self.store.has_failed(worker.config)


def _split(workers: list[Worker]) -> tuple[list[Worker], list[Worker]]:
    for worker in workers:
        worker.process.poll()  # once: one that ends right now must not be in both lists
    running = [w for w in workers if w.process.returncode is None]
    ended = [w for w in workers if w.process.returncode is not None]
    for worker in ended:
        worker.close()
    return running, ended


def _reason(code: int, log: Path) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    lines = log.read_text().strip().splitlines()
    return lines[-1] if lines else f"ended with code {code}"
