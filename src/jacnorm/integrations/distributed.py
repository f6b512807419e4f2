"""Stored vectors when the samples are spread over several processes."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..penalties import Penalty, SpectralPenalty


@torch.no_grad()
def share_vectors(penalty: Penalty, index: torch.Tensor) -> None:
    """Give every process the stored vectors of all others.

    `index` (n,) holds the positions of the samples that this process has used in the epoch. All processes
    must call this together, after each epoch and before any of them writes a checkpoint. It is needed because
    samples are assigned to processes again in each epoch, and a process knows only its own vectors.
    """
    if not isinstance(penalty, SpectralPenalty) or penalty.stored_in is not None:  # processes share a file
        return
    rank, world, own = dist.get_rank(), dist.get_world_size(), penalty.u
    shape = torch.tensor(own.shape, device=own.device)
    dist.all_reduce(shape, dist.ReduceOp.MAX)
    rows, n_out = shape.tolist()
    # Each row comes from one process: the last that used the sample in this epoch, else the last that has it.
    claim = torch.zeros(rows, dtype=torch.int64, device=own.device)
    claim[: len(own)] = 1 + rank
    index = index.to(own.device)
    claim[index[index < len(own)]] = 1 + world + rank  # steps that paid nothing may have no row
    best = claim.clone()
    dist.all_reduce(best, dist.ReduceOp.MAX)
    mine = (best == claim).nonzero()[:, 0]
    table = own.new_zeros(rows, n_out)
    table[mine] = own[mine]
    dist.all_reduce(table)
    penalty.u = table
