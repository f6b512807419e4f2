"""A loaded data set with its two splits, and the batches of training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4  # pixels around the image, for crops


@dataclass(frozen=True, eq=False)
class Split:
    """Images (N, C, H, W), float32 in [0, 1], and their labels (N,), int64.

    A user's own images may have another range. Tables are rows, (N, columns). Tokens are int64, (N, length).
    """

    # float32 and not uint8: noise, attack radius and Jacobian are in these units, every slice can go
    # directly into a net, and synthetic data needs no quantization. CIFAR10 takes 737 MB.
    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        are_tokens = self.images.dim() == 2 and self.images.dtype == torch.int64
        if self.images.dim() not in (2, 4) or not (are_tokens or self.images.dtype == torch.float32):
            raise ValueError(
                f"images must be float32 of shape (N, C, H, W), rows (N, columns), tokens int64 (N, length), "
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
        """The images at these positions, as a split."""
        index = index.to(self.labels.device)
        return Split(self.images[index], self.labels[index])

    def to(self, device: torch.device | str) -> Split:
        return Split(self.images.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class DataSet:
    """A train and a test split. `mean` and `std` are per channel, or column, of the train split."""

    name: str
    train: Split
    test: Split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()  # the names of a table's columns
    notes: tuple[str, ...] = ()  # about a user's own data
    own: bool = False

    @cached_property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number in the data."""
        ends = [end for split in (self.train, self.test) for end in split.images.aminmax()]
        return float(min(ends[0], ends[2])), float(max(ends[1], ends[3]))

    @property
    def is_pixels(self) -> bool:
        """Whether these are images in [0, 1], as noise and attacks need them."""
        low, high = self.range
        return self.train.images.dim() == 4 and low >= 0 and high <= 1

    @property
    def are_tokens(self) -> bool:
        return not self.train.images.is_floating_point()

    @property
    def what(self) -> str:
        return "tokens" if self.are_tokens else "images" if self.train.images.dim() == 4 else "rows"

    @cached_property
    def fingerprint(self) -> str:
        """A digest of all samples, labels and names. It shows if a file has changed under the same name."""
        found = hashlib.sha256(repr((self.classes, self.columns)).encode())
        for split in (self.train, self.test):
            for tensor in (split.images, split.labels):
                found.update(repr(tuple(tensor.shape)).encode() + tensor.cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:10]

    def told(self) -> str:
        """A line about the data, for before training or measuring."""
        return f"{self.name}: {'; '.join(self.notes)}; fingerprint {self.fingerprint}"

    @classmethod
    def of(cls, name: str, train: Split, test: Split, classes: tuple[str, ...]) -> DataSet:
        are_numbers = train.images.is_floating_point()  # tokens are not scaled
        scale = channel_statistics(train.images) if are_numbers else ((0.0,), (1.0,))
        return cls(name, train, test, *scale, classes)

    def held_out(self, fraction: float, seed: int) -> DataSet:
        """The data set for choosing settings. A part of `train` replaces `test`.

        So the choice does not see the real test split. `mean` and `std` come from the images left in
        `train`. The name ends in `-held-out`, so a record of such a run cannot pass for a test result.
        """
        held = round(fraction * len(self.train))
        if not 0 < held < len(self.train):
            raise ValueError(
                f"fraction={fraction} holds out {held} of {len(self.train)} images; "
                f"take a fraction that leaves some on both sides"
            )
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed))
        kept, validation = self.train.take(order[held:]), self.train.take(order[:held])
        made = DataSet.of(f"{self.name}-held-out", kept, validation, self.classes)
        std = tuple(value or 1.0 for value in made.std)  # a constant channel is not divided
        return replace(self, name=made.name, train=kept, test=validation, mean=made.mean, std=std)

    def to(self, device: torch.device | str) -> DataSet:
        return replace(self, train=self.train.to(device), test=self.test.to(device))


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and (population) standard deviation of each channel."""
    total = torch.zeros(images.shape[1], dtype=torch.float64)
    squares = torch.zeros_like(total)
    axes = (0, *range(2, images.dim()))
    # In parts, so that there is never a float64 copy of all images. On the CPU, since some devices have no
    # float64.
    for part in torch.split(images, 1024):
        pixels = part.cpu().double()
        total += pixels.sum(axes)
        squares += pixels.square().sum(axes)
    count = images.numel() / images.shape[1]
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


def batches(
    split: Split, batch_size: int, generator: torch.Generator | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One pass over `split` as (index, images, labels). The last batch may be smaller.

    `index` has the positions of the images in the split (int64), so that a method can find again what it
    stored for an image. With a generator the order is random. Without one the images come in order, as
    evaluations need them.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; a batch holds at least one image")
    order = _order(len(split), generator).to(split.labels.device)
    # `index_select` always copies, so a loop that changes its batch does not change the data.
    return (
        (index, split.images.index_select(0, index), split.labels.index_select(0, index))
        for index in torch.split(order, batch_size)
        if len(index)
    )


def _order(count: int, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.arange(count)
    return torch.randperm(count, generator=generator, device=generator.device)


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """The usual augmentation for CIFAR10: a shift of up to 4 pixels in each direction, and half are mirrored.

    New pixels at the edges are black.

    The draws are made on the generator's device, so they are the same for images on every device.
    """
    count, _, height, width = images.shape
    shifts = 2 * PADDING + 1
    top = _draw(shifts, images, generator)
    left = _draw(shifts, images, generator)
    mirrored = _draw(2, images, generator).bool().view(-1, 1, 1, 1)

    padded = pad(images, (PADDING,) * 4)
    # A view of all crops of all images, (N, C, shifts, shifts, H, W). Only the chosen crops are copied.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(count, device=images.device), :, top, left]
    return torch.where(mirrored, crops.flip(-1), crops)


def _draw(below: int, images: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(below, (len(images),), generator=generator, device=generator.device)
    return drawn.to(images.device)
