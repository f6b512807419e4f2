"""The loop over many runs, and the processes on this machine that train them.

A process is `python -m jacnorm.lab.sweep.pool`. It reads its task from stdin and trains one run. It ends when
its parent ends. Its checkpoint stays.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from ...errors import JacnormError
from ..cli import keep_memory
from ..config import make_config
from ..progress import Progress
from ..run import DivergedError, task_of
from ..settings import Settings
from ..train import train
from ..wording import on_one_line
from .store import Store

POLL_SECONDS = 0.2
LOCKED_ELSEWHERE = 3  # exit code of a worker whose run is locked by another process


@dataclass(frozen=True)
class Ending:
    """How a worker ended.

    Without a reason it has not failed: its run is done, or another process trains it.
    """

    reason: str | None = None


class Worker(Protocol):
    """A process that trains one run."""

    @property
    def config(self) -> Settings: ...

    def poll(self) -> Ending | None:
        """Its ending, or None while it runs."""

    def stop(self) -> None:
        """Stop the process now. The checkpoint stays."""


@dataclass
class Pool(ABC):
    """A pool waits for runs that another sweep is training, and does not repeat them."""

    store: Store
    data_root: Path | None = None
    device: str = "cpu"

    @abstractmethod
    def _slots(self) -> int:
        """How many runs can run at a time."""

    @abstractmethod
    def _start(self, config: Settings) -> Worker: ...

    def run_all(self, configs: Iterable[Settings], watch: Callable[[list[Settings]], None]) -> None:
        """Train until every run is done or has failed for good.

        `watch` is called with the runs in progress.
        """
        waiting = self._to_do(configs)
        running: list[Worker] = []
        try:
            while waiting or running:
                polled = [
                    (w, w.poll()) for w in running
                ]  # asked once, so that a worker that ends right now does not count twice
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

    def _next(self, waiting: list[Settings]) -> Settings | None:
        return next((c for c in waiting if not self.store.is_running(c)), None)

    def _to_do(self, configs: Iterable[Settings]) -> list[Settings]:
        """The runs that are left: neither done nor given up, here or in another sweep."""
        return [c for c in configs if not self.store.is_done(c) and not self.store.has_failed(c)]

    def _counted(self, worker: Worker, ending: Ending) -> Settings:
        if ending.reason is not None:
            self.store.add_failure(worker.config, ending.reason)
        return worker.config


def order(
    config: Settings, store: Store, data_root: Path | None, device: str, threads: int
) -> dict[str, Any]:
    """The task of a worker. Paths are absolute, since another machine has another current folder."""
    root = data_root or os.environ.get("JACNORM_DATA")
    return {
        "config": config.stored(),
        "results": str(store.results.absolute()),
        "runs": str(store.runs.absolute()),
        "data_root": str(Path(root).expanduser().absolute()) if root else None,
        "device": device,
        "threads": threads,
    }


def ending(code: int, log: Path) -> Ending:
    """The meaning of a worker's exit code."""
    if code in (0, LOCKED_ELSEWHERE):
        return Ending()
    # On a file server the log may appear late.
    lines = log.read_text().strip().splitlines() if log.exists() else []
    return Ending(lines[-1] if lines else f"ended with code {code}")


@dataclass
class LocalWorker:
    config: Settings
    process: subprocess.Popen[str]
    log: IO[str]

    def poll(self) -> Ending | None:
        code = self.process.poll()
        if code is None:
            return None
        self._close()
        if code < 0:
            name = signal.Signals(-code).name
            return Ending(f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else ""))
        return ending(code, Path(self.log.name))

    def stop(self) -> None:
        self.process.kill()
        self._close()

    def _close(self) -> None:
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.log.close()


@dataclass(kw_only=True)
class LocalPool(Pool):
    """`workers` processes at a time."""

    workers: int
    threads: int = 1

    def _slots(self) -> int:
        return self.workers

    def _start(self, config: Settings) -> LocalWorker:
        log = self.store.log_file(config)
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("a")
        with self.store.starting(config) as held:
            process = subprocess.Popen(
                [sys.executable, "-m", "jacnorm.lab.sweep.pool"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(self.threads)},
                pass_fds=[held.fileno()],
            )
        assert process.stdin is not None
        task = order(config, self.store, self.data_root, self.device, self.threads)
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()  # and left open: the worker ends when it closes
        return LocalWorker(config, process, file)


def carry_out(task: dict[str, Any]) -> int:
    """Train one run, or continue it, and publish its result."""
    torch.set_num_threads(task["threads"])
    config = make_config(task["config"])
    store = Store(Path(task["results"]), Path(task["runs"]))
    with store.lock(config) as mine:
        if not mine:
            return LOCKED_ELSEWHERE
        if store.is_done(config):
            return 0
        data = task_of(config).load(config, task["data_root"], store.runs)
        store.tidy(config)
        store.publish(config, _result(config, data, store.run_folder(config), task["device"]))
    return 0


def _result(config: Settings, data: Any, folder: Path, device: str) -> dict[str, Any]:
    """A run that diverges also has a result, since it would diverge again."""
    try:
        return train(config, data, folder, device=device, resume=True, progress=Progress(stream=sys.stderr))
    except DivergedError as error:
        print(f"diverged: {error}", file=sys.stderr)
        return error.result


def attempt(task: dict[str, Any]) -> int:
    """Call `carry_out` and print errors to stderr, which is the run's log."""
    keep_memory()
    try:
        return carry_out(task)
    except JacnormError as error:
        print(f"error: {on_one_line(error)}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return 1


def main() -> int:
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return attempt(task)


def _end_with_parent() -> None:
    sys.stdin.read()  # returns when the parent closes its side, by dying if need be
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
