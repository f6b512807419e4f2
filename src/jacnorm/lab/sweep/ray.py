"""Runs on the machines of a Ray cluster. Ray places each run; we count failures and retry.

All machines see the same results/ and runs/ on a shared folder, where locks, checkpoints and logs are. The
lock of a process that dies is let go by the system; that of a machine that vanishes, by the file server after
a while, and until then its run waits.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    AuthenticationError,
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from tqdm import tqdm

from ..errors import UsageError
from ..settings import Settings
from .pool import Ending, Pool, attempt, ending, order
from .store import Store

LATE_SECONDS = 90  # a file server may show a new file to other machines a minute late
STOP_SECONDS = 10
KNOCK_SECONDS = 10


class ClusterError(UsageError):
    """The cluster is not there, has no room for a run, or does not share its folders."""


@ray.remote(max_calls=1, max_retries=0)  # a process of its own for each run, and no counting but ours
def ray_task(task: dict[str, Any], log: Path) -> int:
    """What `python -m jacnorm.lab.sweep.pool` does, on a machine of the cluster."""
    for folder in (Path(task["results"]).parent, log.parent):
        if not folder.is_dir():
            raise _not_shared(folder, socket.gethostname())
    with _output_to(log):
        print(f"On {socket.gethostname()}, process {os.getpid()}.", flush=True)
        return attempt(task)


@dataclass
class RayWorker:
    config: Settings
    store: Store
    answer: ray.ObjectRef[int]
    finished: float | None = field(default=None, init=False)  # when we first knew of it

    def poll(self) -> Ending | None:
        if not ray.wait([self.answer], timeout=0)[0]:
            return None
        log = self.store.log_file(self.config)
        try:
            code = ray.get(self.answer)
        except (NodeDiedError, LocalRayletDiedError) as error:
            with log.open("a") as file:
                print(f"Its machine was lost, which does not count against the run. {error}", file=file)
            return Ending()
        except RayTaskError as error:
            if isinstance(error.cause, ClusterError):
                raise error.cause from None  # every other run would fail as well
            return Ending(_last_line(error))
        except RayError as error:
            return Ending(_reason(error))
        return None if code == 0 and self._is_late() else ending(code, log)

    def _is_late(self) -> bool:
        """Whether a result that was written may still appear on this machine."""
        if self.store.is_done(self.config):
            return False
        self.finished = self.finished or time.monotonic()
        if time.monotonic() - self.finished > LATE_SECONDS:
            raise _not_shared(self.store.results, socket.gethostname())
        return True

    def stop(self) -> None:
        ray.cancel(self.answer, force=True)
        ray.wait([self.answer], timeout=STOP_SECONDS)


@dataclass(kw_only=True)
class RayPool(Pool):
    """As many runs at a time as fit into the cluster, or `workers`."""

    address: str = "local"  # starts a Ray on this machine
    cpus_per_run: int = 1
    gpus_per_run: float = 0
    workers: int | None = None
    _has_room: bool = field(default=True, init=False)

    def run_all(self, configs: Iterable[Settings], watch: Callable[[list[Settings]], None]) -> None:
        self.store.results.parent.mkdir(parents=True, exist_ok=True)
        with _connected(self.address):
            if not self._slots():
                raise ClusterError(f"no machine of the cluster has what a run needs: {self._needs()}")
            super().run_all(configs, watch)

    def _slots(self) -> int:
        room = sum(self._fitting(node["Resources"]) for node in ray.nodes() if node["Alive"])
        if self._has_room and not room:
            tqdm.write(f"No machine is left with {self._needs()}; waiting for one.", file=sys.stderr)
        self._has_room = room > 0
        return room if self.workers is None else min(room, self.workers)

    def _fitting(self, resources: dict[str, float]) -> int:
        """How many runs fit into a machine."""
        needs = {"CPU": self.cpus_per_run, "GPU": self.gpus_per_run}
        return min(int(resources.get(name, 0) / need + 1e-6) for name, need in needs.items() if need)

    def _needs(self) -> str:
        return f"{self.cpus_per_run} CPUs" + (f" and {self.gpus_per_run:g} GPUs" if self.gpus_per_run else "")

    def _start(self, config: Settings) -> RayWorker:
        log = self.store.log_file(config).absolute()
        log.parent.mkdir(parents=True, exist_ok=True)
        task = order(config, self.store, self.data_root, self.device, self.cpus_per_run)
        place = ray_task.options(num_cpus=self.cpus_per_run, num_gpus=self.gpus_per_run, name=config.id)
        return RayWorker(config, self.store, place.remote(task, log))


@contextmanager
def _connected(address: str) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray must not send usage statistics
    dashboard = False if address == "local" else None
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        try:
            _knock(address)
            with _output_to(said):  # Ray's error does not contain its reason
                ray.init(
                    address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR
                )
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise _no_cluster(address, error, said.read_text() if said.exists() else "") from error
    try:
        yield
    finally:
        ray.shutdown()


def _no_cluster(address: str, error: Exception, said: str) -> ClusterError:
    if isinstance(error, AuthenticationError) or "InvalidAuthToken" in said:
        return ClusterError(
            f"--address {address}: the cluster asks for its token: export RAY_AUTH_MODE=token, and put what "
            "`ray get-auth-token` prints on its first machine into ~/.ray/auth_token here"
        )
    found = " ".join(str(error).split())
    return ClusterError(
        f"--address {address}: there is no Ray that can be used ({found}); ray start --head starts a cluster"
    )


def _knock(address: str) -> None:
    """Fail early: Ray itself waits for many minutes if no cluster answers."""
    host, _, port = address.rpartition(":")
    if host:
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=KNOCK_SECONDS).close()


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect all output, also of code that is not Python. The file is closed before Ray reports the end."""
    kept = os.dup(1), os.dup(2)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)


def _reason(error: RayError) -> str:
    if isinstance(error, OutOfMemoryError):
        return "killed by Ray: its machine ran out of memory"
    if isinstance(error, WorkerCrashedError):
        return "its process was killed or crashed (out of memory?)"
    return _last_line(error)


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _not_shared(path: Path, machine: str) -> ClusterError:
    return ClusterError(
        f"{path} is not there on {machine}: with Ray, --results and --runs must be on a folder that all "
        f"machines share under the same name"
    )
