"""Runs on this machine: a few processes at a time, each with one run and one thread."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..config import RunConfig
from .pool import Ending, Pool
from .worker import ending, order


@dataclass
class LocalWorker:
    config: RunConfig
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

    def _start(self, config: RunConfig) -> LocalWorker:
        log = self.store.log_file(config)
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("a")
        with self.store.starting(config) as held:
            process = subprocess.Popen(
                [sys.executable, "-m", "jacnorm.lab.sweep.worker"],
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
