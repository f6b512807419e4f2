"""Which samples a batch holds, so that `SpectralPenalty` can go on where it stopped with each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from ..errors import InputError


class Indexed(NamedTuple):
    """A sample and its position, or, collated, a batch and theirs."""

    data: Any
    index: Any


class WithIndex(Dataset[Any]):
    """A data set whose samples know their position: DataLoader(WithIndex(dataset), …).

    The integrations take the index out again, so that a training step sees the batches it knows. Samples that
    are dicts get a key "index".
    """

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        sample = self.dataset[i]
        if not isinstance(sample, Mapping):
            return Indexed(sample, i)
        if "index" in sample:
            raise InputError("The samples have a key 'index' already, which would be lost: rename it.")
        return {**sample, "index": i}


def split_index(batch: Any) -> tuple[Any, Tensor | None]:
    """The batch as it would be without `WithIndex`, and the index, if there is one."""
    if isinstance(batch, Indexed):
        return batch.data, batch.index
    if isinstance(batch, Mapping) and "index" in batch:
        return {name: value for name, value in batch.items() if name != "index"}, batch["index"]
    return batch, None


def labels_of(batch: Any) -> Any:
    """What usually is the labels in a batch, for penalties that need them; None if nothing looks like it."""
    if isinstance(batch, Mapping):
        return next((batch[name] for name in ("labels", "label") if name in batch), None)
    return batch[1] if isinstance(batch, list | tuple) and len(batch) > 1 else None
