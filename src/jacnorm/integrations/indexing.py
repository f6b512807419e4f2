"""The positions of samples in the data set, so that `SpectralPenalty` can store a vector per sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from ..errors import InputError


class Indexed(NamedTuple):
    """A sample and its position in the data set. After collation: a batch and the positions in it."""

    data: Any
    index: Any


class WithIndex(Dataset[Any]):
    """A data set that adds the position to each sample: DataLoader(WithIndex(dataset), …).

    The integrations remove the position again, so a training step sees its usual batches. Samples that are
    dicts get a key "index". Raises `InputError` if they have this key already.
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
            raise InputError("The samples have a key 'index' already, which would be overwritten: rename it.")
        return {**sample, "index": i}


def split_index(batch: Any) -> tuple[Any, Tensor | None]:
    """The batch without the positions of `WithIndex`, and the positions (B,), or None if there are none."""
    if isinstance(batch, Indexed):
        return batch.data, batch.index
    if isinstance(batch, Mapping) and "index" in batch:
        return {name: value for name, value in batch.items() if name != "index"}, batch["index"]
    return batch, None


def labels_of(batch: Any) -> Any:
    """The part of a batch that is usually the labels, for penalties that need them; None if there is none."""
    if isinstance(batch, Mapping):
        return next((batch[name] for name in ("labels", "label") if name in batch), None)
    return batch[1] if isinstance(batch, list | tuple) and len(batch) > 1 else None
