"""Whether the network is as sure as it is right."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data import Split, batches
from .common import CHUNK, Result, prepare

BINS = 15


@dataclass(frozen=True)
class CalibrationResult(Result):
    """The expected calibration error (Guo et al., 2017) and what it is made of, bin by bin.

    Bins have equal width in confidence, the softmax of the class predicted. An empty bin has None.
    """

    ece: float
    counts: tuple[int, ...]
    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    images: int


@torch.no_grad()
def calibration(model: nn.Module, split: Split) -> CalibrationResult:
    """Σ_b n_b/n · |accuracy − confidence| over the bins b, and the reliability of each."""
    prepare(model, split)
    sure, right = [], []
    for _, images, labels in batches(split, CHUNK):
        confidence, predicted = model(images).softmax(1).max(1)
        sure.append(confidence.double())
        right.append((predicted == labels).double())
    return _in_bins(torch.cat(sure).cpu(), torch.cat(right).cpu())


def _in_bins(sure: Tensor, right: Tensor) -> CalibrationResult:
    bin_ = (sure * BINS).ceil().long().clamp(1, BINS) - 1  # each bin has its upper end
    counts = torch.zeros(BINS, dtype=torch.float64).index_add(0, bin_, torch.ones_like(sure))
    confidence = torch.zeros_like(counts).index_add(0, bin_, sure)
    accuracy = torch.zeros_like(counts).index_add(0, bin_, right)
    ece = float((accuracy - confidence).abs().sum() / len(sure))
    return CalibrationResult(
        ece,
        tuple(int(n) for n in counts),
        _means(confidence, counts),
        _means(accuracy, counts),
        len(sure),
    )


def _means(sums: Tensor, counts: Tensor) -> tuple[float | None, ...]:
    return tuple(float(total / count) if count else None for total, count in zip(sums, counts, strict=True))
