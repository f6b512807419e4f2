"""Shared by all evaluations: checks of the input, and results that become JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data import Split, batches
from ..errors import EvaluationError

CHUNK = 500  # images at a time


@dataclass(frozen=True)
class Result:
    """A result: numbers, strings, and tuples and dicts of them."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def prepare(model: nn.Module, split: Split, *, pixels: bool = True) -> None:
    """Put the network into evaluation mode. Raises an error if images or labels do not fit it."""
    if len(split) == 0:
        raise EvaluationError("there are no images to evaluate on: the selection is empty")
    images, labels = split.images, split.labels
    if pixels and not ((images >= 0) & (images <= 1)).all():
        low, high = images.min().item(), images.max().item()
        raise EvaluationError(
            f"pixels must be in [0, 1], these are in [{low:g}, {high:g}]: leave the normalization to the net"
        )
    model.eval()
    classes = _classes(model, images[:CHUNK])
    if labels.min() < 0 or labels.max() >= classes:
        raise EvaluationError(
            f"labels must be in 0 … {classes - 1}, one of the network's {classes} outputs; "
            f"these are in {int(labels.min())} … {int(labels.max())}"
        )


def check_increasing(name: str, values: tuple[float, ...], least: float = 0) -> None:
    if not values or list(values) != sorted(set(values)) or values[0] < least:
        raise EvaluationError(
            f"{name} = {values}: name one or more numbers from {least:g} on, in rising order"
        )


@torch.no_grad()
def is_right(model: nn.Module, split: Split) -> Tensor:
    """Which images the network classifies correctly, (N,)."""
    return torch.cat([model(images).argmax(1) == labels for _, images, labels in batches(split, CHUNK)])


def share(these: Tensor) -> float:
    """The share of values that are true."""
    return float(these.double().mean())


def wilson(part: Any, count: Any) -> tuple[Any, Any]:
    """Wilson's 95 % interval of a share that was counted on `count` images. Both may be arrays.

    >>> [round(float(end), 3) for share in (0.9, 1.0) for end in wilson(share, 100)]
    [0.826, 0.945, 0.963, 1.0]
    """
    z = 1.959964
    middle = part + z**2 / (2 * count)
    half = z * np.sqrt(part * (1 - part) / count + (z / (2 * count)) ** 2)
    low, high = ((middle + side) / (1 + z**2 / count) for side in (-half, half))
    return np.maximum(0.0, low), np.minimum(1.0, high)


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@torch.no_grad()
def _classes(model: nn.Module, images: Tensor) -> int:
    output = model(images)
    if output.dim() != 2 or len(output) != len(images) or output.shape[1] < 2:
        raise EvaluationError(
            f"the network's output has shape {tuple(output.shape)} for {len(images)} images: an evaluation "
            "needs one row of two or more logits for each"
        )
    if len(bad := (~torch.isfinite(output)).any(1).nonzero()[:, 0]):
        raise EvaluationError(
            f"the network gives NaN or inf for {len(bad)} of the first {len(images)} images, first for "
            f"image {int(bad[0])}"
        )
    return int(output.shape[1])
