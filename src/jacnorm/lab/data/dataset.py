"""What a loaded data set is: two splits of images and what the net needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Images (N, C, H, W), float32 in [0, 1], and their labels (N,), int64."""

    # float32 and not uint8: noise, attack radius and Jacobian are all in these units, any slice can
    # go straight into a net, and made-up data needs no quantization. It costs CIFAR10 737 MB.
    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype != torch.float32:
            raise ValueError(
                f"images must be float32 of shape (N, C, H, W), "
                f"not {self.images.dtype} of shape {tuple(self.images.shape)}"
            )
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels must be int64 of shape ({len(self.images)},), one for each image, "
                f"not {self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Split:
        """The images at these positions, as a split of their own."""
        index = index.to(self.labels.device)
        return Split(self.images[index], self.labels[index])

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class DataSet:
    """A train and a test split; `mean` and `std` are those of each channel of the train split."""

    name: str
    train: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]

    @classmethod
    def of(cls, name: str, train: Split, test: Split, classes: tuple[str, ...]) -> DataSet:
        return cls(name, train, test, *channel_statistics(train.images), classes)

    def held_out(self, fraction: float, seed: int) -> DataSet:
        """The set to select on: a part of `train` takes the place of `test`.

        Settings chosen on it have not seen the real test split. Its `mean` and `std` come from
        the images left in `train`, and its name ends in `-held-out`, so that a record of such a
        run cannot pass for a test result.
        """
        held = round(fraction * len(self.train))
        if not 0 < held < len(self.train):
            raise ValueError(
                f"fraction={fraction} holds out {held} of {len(self.train)} images; "
                f"take a fraction that leaves some on both sides"
            )
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed))
        kept, validation = self.train.take(order[held:]), self.train.take(order[:held])
        return DataSet.of(f"{self.name}-held-out", kept, validation, self.classes)

    def to(self, device: torch.device | str) -> DataSet:
        return replace(self, train=self.train.to(device), test=self.test.to(device))


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and (population) standard deviation of each channel."""
    total = torch.zeros(images.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    # In parts, so that there is never a second, float64 copy of it all; on the CPU, since not
    # every device has float64.
    for part in torch.split(images, 1024):
        pixels = part.cpu().double()
        total += pixels.sum((0, 2, 3))
        squares += pixels.square().sum((0, 2, 3))
    count = images.numel() / images.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())
