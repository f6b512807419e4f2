"""One run in several processes (torchrun): each takes its share of every batch, and they step as one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Share:
    """Every `world`-th sample of a batch, starting at `rank`: all of it, unless told otherwise."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """The one process that writes files and speaks."""
        return self.rank == 0

    def of(self, batch: Tensor) -> Tensor:
        return batch[self.rank :: self.world]

    def taken(self, batch: Tensor) -> Tensor:
        """The share to compute with: never empty, since all must take the step. (`weight` is zero then.)"""
        return self.of(batch) if len(batch) > self.rank else batch[:1]

    def weight(self, batch: Tensor) -> float:
        """What a mean over this share counts for in the average over the processes."""
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
    """This process's share under torchrun, everything without it."""
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
