"""White noise, section 4.2.1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..data import Split, batches
from ..progress import progress
from .common import CHUNK, Result, check_increasing, generator_on, prepare

VARIANCES = (0.0, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2)


@dataclass(frozen=True)
class NoiseResult(Result):
    """Accuracy with noise of each variance, and its drop from the clean accuracy."""

    variances: tuple[float, ...]  # σ², in pixels squared
    accuracy: tuple[float, ...]
    drop: tuple[float, ...]
    clean: float
    images: int
    seed: int


@torch.no_grad()
def white_noise(
    model: nn.Module, split: Split, *, variances: tuple[float, ...] = VARIANCES, seed: int = 0
) -> NoiseResult:
    """Gaussian noise on every pixel, clipped to [0, 1], then the network with its normalization.

    An image gets the same draw at every variance, scaled. So curves are smooth in σ², and all networks see
    the same noise.
    """
    prepare(model, split)
    check_increasing("variances", variances)
    correct = torch.zeros(len(variances) + 1, dtype=torch.int64)
    generator = generator_on(split.images.device, seed)
    with progress(len(split), "white noise") as bar:
        for _, images, labels in batches(split, CHUNK):
            drawn = torch.randn(images.shape, generator=generator, device=images.device)
            for i, variance in enumerate((0.0, *variances)):
                noisy = (images + variance**0.5 * drawn).clamp(0, 1)
                correct[i] += int((model(noisy).argmax(1) == labels).sum())
            bar.update(len(images))
    clean, *accuracy = (correct.double() / len(split)).tolist()
    drop = tuple(clean - a for a in accuracy)
    return NoiseResult(variances, tuple(accuracy), drop, clean, len(split), seed)
