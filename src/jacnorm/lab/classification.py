"""The task: to classify images. Its network, its steps and its scores; another task has others."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import linearize, spectral_norm
from ..errors import NonFiniteError
from ..integrations.distributed import share_vectors
from ..penalties import (
    AnalyticPenalty,
    FrobeniusPenalty,
    MarginPenalty,
    Penalty,
    SpectralBoundPenalty,
    SpectralPenalty,
)
from .attacks import perturbed
from .config import RunConfig
from .data import DataSet, Split, batches, crop_and_flip
from .errors import UsageError
from .nets import Normalized, build, fingerprint, is_own
from .progress import Progress
from .run import SGD, Run, Share

SIGMA_IMAGES = 500  # enough for a mean; the exact σ of each costs as many products as there are classes


def start(config: RunConfig, data: DataSet, device: torch.device | str, share: Share | None = None) -> Run:
    share = share or Share()
    torch.manual_seed(config.seed)
    _, channels, height, _ = data.train.images.shape
    body = build(config.net, channels, height, len(data.classes), config.width)
    mark = fingerprint(body) if is_own(config.net) else None
    model = Normalized(body, data.mean, data.std).to(device)
    check_fits(model, data)
    weight_decay = config.weight if config.method == "l2" else 0.0
    optimizer = SGD(model.parameters(), config.learning_rate, config.momentum, weight_decay)
    penalty, noise = make_penalty(config, share.rank), torch.Generator(device)
    return Run(config, share, model, model.body, optimizer, penalty, noise, [], mark)


def check_start(config: RunConfig, data: DataSet) -> None:
    """Whether the net can be built and takes these images, before there is a folder or a process for it."""
    try:
        with torch.random.fork_rng():
            start(config, data, "cpu")
    except UsageError as error:
        raise UsageError(f"net = {config.net!r}: {error}") from error


def check_fits(model: Normalized, data: DataSet) -> None:
    """One score for each class, or a user's own net gets an obscure error deep in the loss."""
    try:
        with torch.no_grad():
            output = model.eval()(data.train.images[:2])
    except (RuntimeError, ValueError) as error:
        shape = tuple(data.train.images.shape[1:])
        raise UsageError(f"the net does not take images of shape {shape}: {error}") from error
    if not isinstance(output, Tensor):
        raise UsageError(f"the net returns a {type(output).__name__}; a tensor is needed, a score a class")
    if output.shape != (2, len(data.classes)):
        found = tuple(output.shape)
        raise UsageError(
            f"the net gives {found} for 2 images; {(2, len(data.classes))} is needed, a score a class"
        )


def make_penalty(config: RunConfig, rank: int = 0) -> Penalty | None:
    """None for `none`, for `l2` (the optimizer's own weight decay) and for `adversarial` (changed images).

    What is drawn for the samples at hand differs from process to process.
    """
    common: dict[str, Any] = {"every": config.every, "budget": config.budget or None}
    lazy = {**common, "fraction": config.fraction, "seed": config.seed + rank}
    makers = {
        "spectral": lambda: SpectralPenalty(
            config.weight,
            config.iterations,
            start="output" if config.warm_start else "random",
            h=config.h,  # type: ignore[arg-type]
            threshold=config.threshold,
            **lazy,
        ),
        "frobenius": lambda: FrobeniusPenalty(config.weight, config.projections, **lazy),
        "spectral-bound": lambda: SpectralBoundPenalty(
            config.weight,
            config.iterations,
            convolution=config.convolution,  # type: ignore[arg-type]
            **common,
            seed=config.seed,
        ),
        "analytic": lambda: AnalyticPenalty(config.weight, **lazy),
        "margin": lambda: MarginPenalty(
            config.weight, config.radius, candidates=config.candidates, norm=config.radius_norm, **lazy
        ),
    }
    return makers[config.method]() if config.method in makers else None


def train_epoch(run: Run, split: Split, epoch: int, progress: Progress) -> dict[str, Any]:
    """One pass over the data; everything random in it depends on the seed and the epoch alone."""
    config, share, begin = run.config, run.share, time.perf_counter()
    generator = torch.Generator().manual_seed(run.seed(epoch))
    torch.manual_seed(run.seed(epoch) + share.rank)  # for dropout
    run.noise.manual_seed(run.seed(epoch) + share.rank)
    run.optimizer.learning_rate = scheduled(config, epoch)
    run.model.train()
    tally, seen = Tally(), []
    for step, (index, images, labels) in enumerate(batches(split, config.batch_size, generator)):
        if config.augment:
            images = crop_and_flip(images, generator)
        try:
            loss, penalty, accuracy = train_step(run, images, labels, index)
        except NonFiniteError as error:
            raise run.diverged(f"step {step + 1}", "The network's output has NaN or inf.") from error
        if not math.isfinite(total := float(loss + penalty)):
            raise run.diverged(f"step {step + 1}", f"The loss is {total}.")
        tally.add(share.weight(labels) * len(labels), loss, penalty, accuracy)
        seen.append(share.of(index))
        progress.step_done(len(labels), tally.sums)
    if share.world > 1 and run.penalty is not None:  # the next epoch deals the images out otherwise
        share_vectors(run.penalty, torch.cat(seen))
    seconds = time.perf_counter() - begin
    loss, penalty, accuracy = (share.averaged(tally.sums()) / len(split)).tolist()
    return {
        "epoch": epoch + 1,
        "learning_rate": run.optimizer.learning_rate,
        "train_loss": loss,
        "train_penalty": penalty,
        "train_accuracy": accuracy,
        "seconds": seconds,
        "images_per_second": len(split) / seconds,
    }


def scheduled(config: RunConfig, epoch: int) -> float:
    if config.schedule == "constant":
        return config.learning_rate
    return config.learning_rate * (1 + math.cos(math.pi * epoch / config.epochs)) / 2


class Tally:
    """What the steps of an epoch come to. Numbers are added up when somebody reads them, not at each step."""

    def __init__(self) -> None:
        self._images: list[float] = []
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._sums: Tensor | None = None

    def add(self, images: float, loss: Tensor, penalty: Tensor, accuracy: Tensor) -> None:
        self._images.append(images)
        self._steps.append((loss, penalty, accuracy))

    def sums(self) -> Tensor:
        """Of loss, penalty and accuracy, each times its images."""
        if self._steps:
            means = torch.stack([torch.stack(column) for column in zip(*self._steps, strict=True)])
            found = (means * torch.tensor(self._images, device=means.device)).sum(1)
            self._sums = found if self._sums is None else self._sums + found
            self._images.clear()
            self._steps.clear()
        assert self._sums is not None
        return self._sums


def train_step(run: Run, images: Tensor, labels: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One optimizer step; loss, penalty and accuracy of this process's share of the batch."""
    config, share, weight = run.config, run.share, run.share.weight(labels)
    images, labels = share.taken(images), share.taken(labels)
    if config.method == "adversarial":
        radius, steps = config.epsilon, config.attack_steps
        images = perturbed(run.model, images, labels, epsilon=radius, steps=steps, generator=run.noise)
    x = run.model.normalize(images)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=config.autocast):
        if run.penalty is None:
            output = run.body(x)
            loss = F.cross_entropy(output, labels)
            penalty = torch.zeros_like(loss)
        else:
            half = torch.bfloat16 if config.precision == "bfloat16" else None
            how: Any = {"batch_norm": config.batch_norm, "precision": half}
            J = run.penalty.linearize(run.body, x, **how)
            output = J.output
            loss = F.cross_entropy(output, labels)
            rows = share.taken(index) if config.warm_start else None
            penalty = run.penalty(J, index=rows, labels=labels)
    run.optimizer.zero_grad()
    (weight * (loss + penalty)).backward()
    run.optimizer.step()
    accuracy = (output.detach().argmax(1) == labels).mean(dtype=loss.dtype)
    return loss.detach(), penalty.detach(), accuracy


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
