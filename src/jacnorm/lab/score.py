"""How well a network does on a split, and how sensitive it is there."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .. import linearize, spectral_norm
from .data import Split, batches
from .nets import Normalized

SIGMA_IMAGES = 500  # enough for a mean; the exact σ of each costs as many products as there are classes


@torch.no_grad()
def score(model: Normalized, split: Split, batch_size: int = 500) -> dict[str, float]:
    """Loss, accuracy, and the mean σ of the first images, with respect to the normalized input."""
    model.eval()
    loss = correct = 0.0
    for _, images, labels in batches(split, batch_size):
        output = model(images)
        loss += float(F.cross_entropy(output, labels, reduction="sum"))
        correct += float((output.argmax(1) == labels).sum())
    first = split.images[:SIGMA_IMAGES]
    J = linearize(model.body, model.normalize(first))
    return {
        "loss": loss / len(split),
        "accuracy": correct / len(split),
        "sigma": float(spectral_norm(J).sigma.mean()),
        "sigma_images": len(first),
    }
