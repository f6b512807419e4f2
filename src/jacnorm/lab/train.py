"""Training, from a config to a folder with weights, metrics and a result."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import linearize, spectral_norm
from ..errors import JacnormError, NonFiniteError
from ..integrations.distributed import share_vectors
from .attacks import perturbed
from .config import RunConfig
from .data import DataSet, Split, batches, crop_and_flip
from .machine import environment
from .nets import Normalized
from .progress import Progress
from .run import Run, start
from .run_files import RunFiles, marked
from .share import Share

SIGMA_IMAGES = 500  # enough for a mean; the exact σ of each costs as many products as there are classes
HELD_OUT = 1 / 6  # of the train split, under the protocol "held-out"


class DivergedError(JacnormError):
    """Training cannot go on; the message says where it stopped and what to try."""

    result: dict[str, Any]  # what there is of one


def train(
    config: RunConfig,
    data: DataSet,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    resume: bool = False,
    progress: Progress | None = None,
    share: Share | None = None,
) -> dict[str, Any]:
    """Train to the end, with a checkpoint after every epoch, and return the result (also in result.json)."""
    progress, share = progress or Progress(quiet=True), share or Share()
    files = RunFiles(folder)
    run_data = data.held_out(HELD_OUT, seed=0) if config.protocol == "held-out" else data
    run_data = run_data.to(device)
    with torch.random.fork_rng():
        run = start(config, run_data, device, share)
        with share.first_goes_ahead():
            files.prepare(run, resume) if share.first else files.load(run)
        run.body = share.spread(run.model.body)
        try:
            with progress.training(config, len(run.history), len(run_data.train)):
                train_epochs(run, run_data, files, progress)
            test = validate(run, data.test.to(device), "the test split")
        except DivergedError as error:
            error.result = {**result_of(run, None, device), "diverged": str(error)}
            if share.first:
                files.write_result(error.result)
            raise
    result = result_of(run, test, device)
    if share.first:
        files.finish(run, result)
    return result


def train_epochs(run: Run, data: DataSet, files: RunFiles, progress: Progress) -> None:
    for epoch in range(len(run.history), run.config.epochs):
        metrics = train_epoch(run, data.train, epoch, progress)
        metrics |= prefixed("validation", validate(run, data.test))
        run.history.append(metrics)
        if run.share.first:
            files.save_epoch(run)
        progress.epoch_done(metrics)


def result_of(run: Run, test: dict[str, float] | None, device: torch.device | str) -> dict[str, Any]:
    return {
        "id": run.config.id,
        "config": asdict(run.config),
        "test": test,
        "history": run.history,
        **marked(run),
        "environment": environment(device),
    }


def train_epoch(run: Run, split: Split, epoch: int, progress: Progress) -> dict[str, Any]:
    """One pass over the data; everything random in it depends on the seed and the epoch alone."""
    config, share, begin = run.config, run.share, time.perf_counter()
    generator = torch.Generator().manual_seed(_mix(config.seed, epoch))
    torch.manual_seed(_mix(config.seed, epoch) + share.rank)  # for dropout
    run.noise.manual_seed(_mix(config.seed, epoch) + share.rank)
    run.optimizer.learning_rate = scheduled(config, epoch)
    run.model.train()
    tally, seen = Tally(), []
    for step, (index, images, labels) in enumerate(batches(split, config.batch_size, generator)):
        if config.augment:
            images = crop_and_flip(images, generator)
        try:
            loss, penalty, accuracy = train_step(run, images, labels, index)
        except NonFiniteError as error:
            raise _diverged(run, f"step {step + 1}", "The network's output has NaN or inf.") from error
        if not math.isfinite(total := float(loss + penalty)):
            raise _diverged(run, f"step {step + 1}", f"The loss is {total}.")
        tally.add(share.weight(labels) * len(labels), loss, penalty, accuracy)
        seen.append(share.of(index))
        progress.step_done(len(labels), tally.sums)
    if share.world > 1 and run.penalty is not None:  # the next epoch deals the images out anew
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
    if run.penalty is None:
        output = run.body(x)
        loss = F.cross_entropy(output, labels)
        penalty = torch.zeros_like(loss)
    else:
        J = run.penalty.linearize(run.body, x, batch_norm=config.batch_norm)  # type: ignore[arg-type]
        output = J.output
        loss = F.cross_entropy(output, labels)
        rows = share.taken(index) if config.warm_start else None
        penalty = run.penalty(J, index=rows, labels=labels)
    run.optimizer.zero_grad()
    (weight * (loss + penalty)).backward()
    run.optimizer.step()
    accuracy = (output.detach().argmax(1) == labels).mean(dtype=loss.dtype)
    return loss.detach(), penalty.detach(), accuracy


def validate(run: Run, split: Split, where: str = "validation") -> dict[str, float]:
    """The last step of an epoch may be the one that went too far."""
    try:
        scores = score(run.model, split)
    except NonFiniteError as error:
        raise _diverged(run, where, "The network's output has NaN or inf.") from error
    if not math.isfinite(scores["loss"]):
        raise _diverged(run, where, f"The loss is {scores['loss']}.")
    return scores


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


def scheduled(config: RunConfig, epoch: int) -> float:
    if config.schedule == "constant":
        return config.learning_rate
    return config.learning_rate * (1 + math.cos(math.pi * epoch / config.epochs)) / 2


def prefixed(prefix: str, metrics: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}_{name}": value for name, value in metrics.items()}


def _mix(seed: int, epoch: int) -> int:
    """A seed of its own for every epoch of every run."""
    return (seed * 1_000_003 + epoch) % 2**63


def _diverged(run: Run, where: str, what: str) -> DivergedError:
    epochs = len(run.history)
    kept = f" The checkpoint of epoch {epochs} is kept." if epochs else ""
    advice = "Try a smaller learning rate"
    if run.penalty is not None:
        advice += f" or weight (they are {run.config.learning_rate} and {run.config.weight})"
    epoch = min(epochs + 1, run.config.epochs)
    return DivergedError(f"Epoch {epoch}, {where}: {what} {advice}.{kept}")
