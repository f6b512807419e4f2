"""More than accuracy: whether confidence agrees with accuracy, and how the loss rises."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attacks import loss_gradient
from ..data import Split, batches
from ..progress import progress
from .adversarial import STEP_SIZE
from .common import CHUNK, Result, prepare

BINS = 15


@dataclass(frozen=True)
class CalibrationResult(Result):
    """The expected calibration error (Guo et al., 2017), and its parts bin by bin.

    Bins have equal width in confidence, the softmax of the predicted class. Empty bins have None.
    """

    ece: float
    counts: tuple[int, ...]
    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]
    images: int


@torch.no_grad()
def calibration(model: nn.Module, split: Split) -> CalibrationResult:
    """Σ_b n_b/n · |accuracy − confidence| over the bins b, and the reliability of each."""
    prepare(model, split, pixels=False)
    sure, right = [], []
    for _, images, labels in batches(split, CHUNK):
        confidence, predicted = model(images).softmax(1).max(1)
        sure.append(confidence.double())
        right.append((predicted == labels).double())
    return _in_bins(torch.cat(sure).cpu(), torch.cat(right).cpu())


def _in_bins(sure: Tensor, right: Tensor) -> CalibrationResult:
    bin_ = (sure * BINS).ceil().long().clamp(1, BINS) - 1  # each bin includes its upper end
    counts = torch.zeros(BINS, dtype=torch.float64).index_add(0, bin_, torch.ones_like(sure))
    confidence = torch.zeros_like(counts).index_add(0, bin_, sure)
    accuracy = torch.zeros_like(counts).index_add(0, bin_, right)
    ece = float((accuracy - confidence).abs().sum() / len(sure))
    return CalibrationResult(
        ece, tuple(int(n) for n in counts), _means(confidence, counts), _means(accuracy, counts), len(sure)
    )


def _means(sums: Tensor, counts: Tensor) -> tuple[float | None, ...]:
    return tuple(float(total / count) if count else None for total, count in zip(sums, counts, strict=True))


@dataclass(frozen=True)
class LandscapeResult(Result):
    """The cross-entropy as a function of pixels. All numbers are means over the images.

    `slope` is ‖∇ₓ loss‖₂. Let d be the unit direction of PGD's first step, sign(∇ₓ loss). `attack_slope` is
    the derivative along d. `curvature` says how fast this derivative grows from x to the end of the step:
    (∇loss(x + h d) − ∇loss(x))·d / h, after Moosavi-Dezfooli et al. (2019). It is a difference and not a
    second derivative, since a ReLU network bends only at kinks, which a second derivative does not see.
    """

    slope: float
    attack_slope: float
    curvature: float
    step_size: float  # η, in pixels: the step is η sign(∇ₓ loss)
    images: int


def landscape(model: nn.Module, split: Split, *, step_size: float = STEP_SIZE) -> LandscapeResult:
    """How steep the loss is, and how much steeper it gets along PGD's first step."""
    prepare(model, split)
    totals = torch.zeros(3, dtype=torch.float64)
    with progress(len(split), "loss landscape") as bar:
        for _, images, labels in batches(split, CHUNK):
            totals += _sums(model, images, labels, step_size)
            bar.update(len(images))
    slope, along, curvature = (totals / len(split)).tolist()
    return LandscapeResult(slope, along, curvature, step_size, len(split))


def _sums(model: nn.Module, x: Tensor, y: Tensor, step_size: float) -> Tensor:
    here = loss_gradient(model, x, y)
    step = step_size * here.sign()
    length = step.flatten(1).norm(dim=1)
    direction = step.flatten(1) / length.clamp_min(torch.finfo(x.dtype).tiny)[:, None]
    there = loss_gradient(model, x + step, y)
    slope, steeper = ((gradient.flatten(1) * direction).sum(1).double() for gradient in (here, there))
    curvature = torch.where(length > 0, (steeper - slope) / length, 0)
    return torch.stack([here.flatten(1).norm(dim=1).double().sum(), slope.sum(), curvature.sum()]).cpu()
