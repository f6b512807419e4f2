"""The usual augmentation for CIFAR10."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4


def crop_and_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to 4 pixels either way (black moves in), then mirror half of them.

    The draws come from the generator's device and are the same for images on any other.
    """
    count, _, height, width = images.shape
    shifts = 2 * PADDING + 1
    top = _draw(shifts, images, generator)
    left = _draw(shifts, images, generator)
    mirrored = _draw(2, images, generator).bool().view(-1, 1, 1, 1)

    padded = pad(images, (PADDING,) * 4)
    # A view of every crop of every image, (N, C, shifts, shifts, H, W); only the chosen are copied.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    crops = windows[torch.arange(count, device=images.device), :, top, left]
    return torch.where(mirrored, crops.flip(-1), crops)


def _draw(below: int, images: Tensor, generator: torch.Generator) -> Tensor:
    drawn = torch.randint(below, (len(images),), generator=generator, device=generator.device)
    return drawn.to(images.device)
