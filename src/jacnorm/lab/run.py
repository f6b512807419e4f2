"""A training in progress: the interface of a task, and the share of each process.

Classification is one task. Each other task is a module of its own.
"""

from __future__ import annotations

import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .. import __version__
from ..errors import JacnormError
from .errors import UsageError
from .progress import Progress
from .settings import Settings


class DivergedError(JacnormError):
    """Training cannot continue. The message says where it stopped and what to try."""

    result: dict[str, Any]  # the result so far


@dataclass(frozen=True)
class Share:
    """The part of a batch for one process: every `world`-th sample from `rank` on. By default all samples."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def of(self, batch: Tensor) -> Tensor:
        return batch[self.rank :: self.world]

    def taken(self, batch: Tensor) -> Tensor:
        """The share to compute with.

        It is never empty, since all processes take the step. (An extra sample has weight 0.)
        """
        return self.of(batch) if len(batch) > self.rank else batch[:1]

    def weight(self, batch: Tensor) -> float:
        """The weight of this share's mean in the average over processes."""
        return len(self.of(batch)) * self.world / len(batch)

    def spread(self, body: nn.Module) -> nn.Module:
        return DistributedDataParallel(body) if self.world > 1 else body

    def averaged(self, numbers: Tensor) -> Tensor:
        if self.world > 1:
            dist.all_reduce(numbers)
        return numbers / self.world

    @contextmanager
    def first_goes_ahead(self) -> Iterator[None]:
        if not self.first:
            dist.barrier()
        yield
        if self.first and self.world > 1:
            dist.barrier()


@contextmanager
def processes(device: torch.device) -> Iterator[Share]:
    """The share of this process under torchrun. Without torchrun it is everything."""
    if not (dist.is_available() and dist.is_torchelastic_launched()):
        yield Share()
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield Share(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


class Run(ABC):
    """A training in progress. Each task implements its epoch, its test and its checkpoint."""

    unit = "steps"  # the unit of progress ...
    work: int  # ... and how many there are in an epoch
    fingerprint: str | None = None  # set for a user's own net

    def __init__(self, config: Settings, share: Share):
        self.share = share
        self.settings = config
        self.history: list[dict[str, Any]] = []  # one entry per epoch

    @abstractmethod
    def epoch(self, epoch: int, progress: Progress) -> dict[str, Any]:
        """Train one epoch and measure after it. Random numbers depend on the seed and the epoch alone."""

    @abstractmethod
    def test(self) -> dict[str, float]:
        """The numbers measured at the end."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that the next epochs need, for a checkpoint."""

    @abstractmethod
    def load(self, tensors: Mapping[str, Tensor]) -> None: ...

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """The tensors that are kept at the end."""

    @property
    def beside_weights(self) -> dict[str, Any]:
        """Other values that are stored beside the weights."""
        return {}

    @abstractmethod
    def line(self, metrics: Mapping[str, Any]) -> str:
        """A line about an epoch, for a log file."""

    def keep_pictures(self, folder: Path) -> None:  # noqa: B027
        """Write pictures at the end, if the task has any."""

    def seed(self, epoch: int) -> int:
        """A different seed for every epoch of every run."""
        return (self.settings.seed * 1_000_003 + epoch) % 2**63

    @property
    def advice(self) -> str:
        return "Try a smaller learning rate"

    def diverged(self, where: str, what: str) -> DivergedError:
        epochs = len(self.history)
        kept = f" The checkpoint of epoch {epochs} is kept." if epochs else ""
        epoch = min(epochs + 1, self.settings.epochs)
        return DivergedError(f"Epoch {epoch}, {where}: {what} {self.advice}.{kept}")


class Task(Protocol):
    """A module with these functions. Its settings are in `config.KINDS`."""

    def check_names(self, config: Any) -> None:
        """Check that data sets, nets and environments exist, as far as this is quick."""

    def load(self, config: Any, data_root: Path | str | None, runs: Path) -> Any:
        """The data of a run, from the data sets or from other runs."""

    def check_start(self, config: Any, data: Any) -> None:
        """Check that a run can start, before a folder or a process is made."""

    def start(
        self, config: Any, data: Any, device: torch.device | str, share: Share | None = None
    ) -> Run: ...

    def told(self, config: Any, result: dict[str, Any]) -> str:
        """A line about a finished run."""


MODULES = {
    "classification": "classification",
    "gan": "tasks.gan",
    "policy": "tasks.policy",
    "dqn": "tasks.dqn",
}


def task_of(config: Settings) -> Task:
    """Imported when needed, since tasks have their own dependencies."""
    try:
        return cast(Task, import_module(f".{MODULES[config.task]}", __package__))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("jacnorm"):
            raise
        raise UsageError(f"--task {config.task} needs {error.name}: pip install 'jacnorm[rl]'") from error


def environment(device: torch.device | str) -> dict[str, Any]:
    """The versions and the machine that made a result."""
    return {
        "jacnorm": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "threads": torch.get_num_threads(),
    }
