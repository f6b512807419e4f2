"""Warm starts when the samples are spread over several processes."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ..penalties import Penalty, SpectralPenalty


@torch.no_grad()
def share_vectors(penalty: Penalty, index: torch.Tensor) -> None:
    """Give every process the vectors that the others have found; `index` are the samples that were here.

    To be called by all processes together, after an epoch and before a checkpoint of one of them: samples
    are dealt out anew in each epoch, and a process knows only those it has had.
    """
    if not isinstance(penalty, SpectralPenalty) or penalty.stored_in is not None:  # a file is there for all
        return
    rank, world, own = dist.get_rank(), dist.get_world_size(), penalty.u
    shape = torch.tensor(own.shape, device=own.device)
    dist.all_reduce(shape, dist.ReduceOp.MAX)
    rows, n_out = shape.tolist()
    # Each row is taken from one process: the last that has had the sample in this epoch, or at all.
    claim = torch.zeros(rows, dtype=torch.int64, device=own.device)
    claim[: len(own)] = 1 + rank
    index = index.to(own.device)
    claim[index[index < len(own)]] = 1 + world + rank  # those of steps that paid nothing may have no row
    best = claim.clone()
    dist.all_reduce(best, dist.ReduceOp.MAX)
    mine = (best == claim).nonzero()[:, 0]
    table = own.new_zeros(rows, n_out)
    table[mine] = own[mine]
    dist.all_reduce(table)
    penalty.u = table
