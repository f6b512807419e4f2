"""Batches of a split, shuffled from a generator or in order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .dataset import Split


def batches(
    split: Split, batch_size: int, generator: torch.Generator | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One pass over `split` as (index, images, labels), the last batch as small as it comes.

    `index` holds the positions of the images in the split (int64), so that whatever a method
    remembers of an image can be found again. With a generator the order is drawn from it; without
    one there is no randomness: the images come in order, as an evaluation wants them.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; a batch holds at least one image")
    order = _order(len(split), generator).to(split.labels.device)
    # `index_select` copies even when in order: a loop that changes its batch must not change the data.
    return (
        (index, split.images.index_select(0, index), split.labels.index_select(0, index))
        for index in torch.split(order, batch_size)
        if len(index)
    )


def _order(count: int, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.arange(count)
    return torch.randperm(count, generator=generator, device=generator.device)
