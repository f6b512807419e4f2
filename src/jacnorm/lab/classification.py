"""The task of classifying images: its network, training step and scores."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import Linearization, linearize, spectral_norm
from ..errors import NonFiniteError
from ..integrations.distributed import share_vectors
from ..integrations.watch import OnceAnEpoch
from ..penalties import (
    AnalyticPenalty,
    FrobeniusPenalty,
    MarginPenalty,
    NormPenalty,
    Penalty,
    SpectralBoundPenalty,
    SpectralPenalty,
)
from .attacks import perturbed
from .checkpoint import part, prefixed
from .config import RunConfig
from .data import DataSet, Split, batches, crop_and_flip
from .data import load as load_data
from .data.catalog import check_name
from .errors import UsageError
from .nets import NETS, NetError, Normalized, build, check_fits, fingerprint, is_own, normalized
from .optimizers import SGD, Adam
from .progress import Progress, Tally
from .run import Run, Share
from .wording import did_you_mean

HELD_OUT = 1 / 6  # of the train split, under the protocol "held-out"

SIGMA_IMAGES = 500  # enough for a mean. The exact σ of an image takes one product per class


class Classification(Run):
    """A classifier in training: the model, the optimizer, the penalty and the data."""

    unit = "images"

    def __init__(self, config: RunConfig, data: DataSet, model: Normalized, share: Share):
        super().__init__(config, share)
        self.config, self.model, self.data = config, model, data
        self.device = model.mean.device
        self.optimizer = make_optimizer(config, model.parameters())
        self.penalty = make_penalty(config, share.rank)
        self.reports, self.reported = OnceAnEpoch(self.penalty), dict[str, float]()  # in this epoch
        self.noise = torch.Generator(self.device)  # where attacks start
        self.fingerprint = fingerprint(model.body) if is_own(config.net) else None

    @cached_property
    def split(self) -> DataSet:
        """The data for training and validation."""
        return trained_on(self.config, self.data).to(self.device)

    @cached_property
    def body(self) -> nn.Module:
        """The body of the model. With several processes it is wrapped, once all have the same weights."""
        return self.share.spread(self.model.body)

    @property
    def work(self) -> int:  # type: ignore[override]
        return len(self.split.train)

    def epoch(self, epoch: int, progress: Progress) -> dict[str, Any]:
        metrics = train_epoch(self, self.split.train, epoch, progress)
        scores = validate(self, self.split.test)
        return metrics | {f"validation_{name}": value for name, value in scores.items()}

    def test(self) -> dict[str, float]:
        return validate(self, self.data.test.to(self.device), "the test split")

    def tensors(self) -> dict[str, Tensor]:
        kept = {"model": self.model.state_dict(), "momentum": self.optimizer.tensors()}
        if self.penalty is not None:
            kept["penalty"] = self.penalty.state_dict()
        return {name: t for part, of in kept.items() for name, t in prefixed(part, of).items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict(part("model", tensors))
        self.optimizer.load(part("momentum", tensors))
        if self.penalty is not None:
            self.penalty.load_state_dict(part("penalty", tensors))

    def weights(self) -> dict[str, Tensor]:
        """The weights by name. For a user's own net, the names are those of the net itself."""
        return (self.model if self.fingerprint is None else self.model.body).state_dict()

    @property
    def beside_weights(self) -> dict[str, Any]:
        if self.fingerprint is None:
            return {}
        return {name: getattr(self.model, name).flatten().tolist() for name in ("mean", "std")}

    def load_weights(self, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """Load the weights from a file of any version. Older files contain the whole model."""
        found = dict(tensors)
        if "mean" in rest:
            scale = {name: getattr(self.model, name) for name in ("mean", "std")}
            found = prefixed("body", tensors)
            found |= {name: torch.tensor(rest[name]).view_as(like) for name, like in scale.items()}
        self.model.load_state_dict(found)

    def line(self, m: Mapping[str, Any]) -> str:
        return (
            f"loss {m['train_loss']:.4f}  validation: loss {m['validation_loss']:.4f} "
            f"accuracy {m['validation_accuracy']:.2%} σ {m['validation_sigma']:.3f}  "
            f"{m['images_per_second']:,.0f} images/s{quality(m)}"
        )

    def report(self, J: Linearization, index: Tensor | None, loss: Tensor, labels: Tensor) -> None:
        """The penalty's report, from the first step of an epoch with a penalty."""
        self.reported |= self.reports.report(len(self.history), J, index, loss, labels)

    @property
    def advice(self) -> str:
        if self.penalty is None:
            return super().advice
        rate, weight = self.config.learning_rate, self.config.weight
        return f"{super().advice} or weight (they are {rate} and {weight})"


def quality(m: Mapping[str, Any]) -> str:
    """Text on how good the penalty's estimate of σ is, and on the weight if a target changes it."""
    weight = f"  λ {m['penalty_weight']:.3g}" if "penalty_weight" in m else ""
    if "sigma_error" not in m:
        return weight
    return f"{weight}  estimate of σ {m['sigma_error']:+.0%}, cosine of its gradient {m['sigma_cosine']:.2f}"


def load(config: RunConfig, data_root: Path | str | None, runs: Path) -> DataSet:
    data = load_data(config.data, data_root, **config.how_to_read)
    config.with_data(data)
    return data


def start(
    config: RunConfig, data: DataSet, device: torch.device | str, share: Share | None = None
) -> Classification:
    torch.manual_seed(config.seed)
    run_data = trained_on(config, data)
    shape = tuple(data.train.images.shape[1:])
    body = build(config.net, shape, len(data.classes), config.width, config.output)
    model = normalized(body, run_data, at=config.at).to(device)
    check_fits(model, data)
    return Classification(config, data, model, share or Share())


def trained_on(config: RunConfig, data: DataSet) -> DataSet:
    """The data, with the validation split in place of the test split."""
    return data.held_out(HELD_OUT, seed=0) if config.protocol == "held-out" else data


def check_names(config: RunConfig) -> None:
    """Check that the data set and the net are known. A user's own net is not imported here."""
    check_name(config.data)
    if config.net not in NETS and not is_own(config.net):
        raise NetError(
            f"there is no net {config.net!r}: {did_you_mean(config.net, NETS)}, or package.module:factory"
        )


def told(config: RunConfig, result: dict[str, Any]) -> str:
    test = result["test"]
    last = result["history"][-1]
    found = f"; λ ended at {last['penalty_weight']:.3g}" if "penalty_weight" in last else ""
    return (
        f"{config.label} on {config.data}: test accuracy {test['accuracy']:.2%}, loss {test['loss']:.4f}, "
        f"mean σ {test['sigma']:.3f} ({config.inputs}, first {test['sigma_images']} samples){found}"
    )


def check_start(config: RunConfig, data: DataSet) -> None:
    """Check that the net can be built and takes these images, before a folder or a process is made."""
    if config.augment and data.train.images.dim() != 4:
        raise UsageError(
            f"augment = true: {data.name} has {data.what}; crops and mirror images are for images"
        )
    if config.method == "adversarial" and not data.is_pixels:
        raise UsageError(f'method = "adversarial": {data.name} has no pixels from 0 to 1 to attack')
    try:
        with torch.random.fork_rng():
            start(config, data, "cpu")
    except UsageError as error:
        raise UsageError(f"net = {config.net!r}: {error}") from error


def make_optimizer(config: RunConfig, parameters: Iterable[nn.Parameter]) -> SGD | Adam:
    """The method `weight-decay` is a setting of the optimizer."""
    decay = config.weight if config.method == "weight-decay" else 0.0
    if config.optimizer == "sgd":
        return SGD(parameters, config.learning_rate, config.momentum, decay)
    return Adam(config.optimizer, parameters, config.learning_rate, decay)


def make_penalty(config: RunConfig, rank: int = 0) -> Penalty | None:
    """None for `none`, for `weight-decay` (the optimizer does it) and for `adversarial` (changed images).

    Each process draws its own random vectors, since it has other samples.
    """
    common: dict[str, Any] = {"every": config.every, "budget": config.budget or None}
    lazy = {**common, "fraction": config.fraction, "seed": config.seed + rank}
    steered = {**lazy, "target": config.target or None, "target_quantile": config.target_quantile or None}
    makers = {
        "spectral": lambda: SpectralPenalty(
            config.weight,
            config.iterations,
            start="output" if config.warm_start else "random",
            h=config.h,  # type: ignore[arg-type]
            threshold=config.threshold,
            **steered,
        ),
        "frobenius": lambda: FrobeniusPenalty(config.weight, config.projections, **steered),
        "spectral-bound": lambda: SpectralBoundPenalty(
            config.weight,
            config.iterations,
            convolution=config.convolution,  # type: ignore[arg-type]
            **common,
            seed=config.seed,
        ),
        "analytic": lambda: AnalyticPenalty(config.weight, **steered),
        "margin": lambda: MarginPenalty(
            config.weight, config.radius, candidates=config.candidates, norm=config.radius_norm, **lazy
        ),
    }
    return makers[config.method]() if config.method in makers else None


def train_epoch(run: Classification, split: Split, epoch: int, progress: Progress) -> dict[str, Any]:
    """One pass over the data. All random numbers depend on the seed and the epoch alone."""
    config, share, begin = run.config, run.share, time.perf_counter()
    generator = torch.Generator().manual_seed(run.seed(epoch))
    torch.manual_seed(run.seed(epoch) + share.rank)  # for dropout
    run.noise.manual_seed(run.seed(epoch) + share.rank)
    run.optimizer.learning_rate = scheduled(config, epoch)
    run.model.train()
    run.reported = {}
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
        progress.step_done(len(labels), lambda: tally.words(run.history))
    if share.world > 1 and run.penalty is not None:  # the next epoch distributes the images differently
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
        **run.reported,
        **_moved_weight(run.penalty),
    }


def _moved_weight(penalty: Penalty | None) -> dict[str, float]:
    """The weight, if a target changes it."""
    if isinstance(penalty, NormPenalty) and penalty.steering is not None:
        return {"penalty_weight": penalty.weight}
    return {}


def scheduled(config: RunConfig, epoch: int) -> float:
    if config.schedule == "constant":
        return config.learning_rate
    return config.learning_rate * (1 + math.cos(math.pi * epoch / config.epochs)) / 2


def train_step(
    run: Classification, images: Tensor, labels: Tensor, index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Take one optimizer step.

    Returns the loss, penalty and accuracy of this process's share of the batch.
    """
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
            how: Any = {"batch_norm": config.batch_norm, "precision": half, "at": run.model.at}
            J = run.penalty.linearize(run.body, x, **how)
            output = J.output
            loss = F.cross_entropy(output, labels)
            rows = share.taken(index) if config.warm_start else None
            penalty = run.penalty(J, index=rows, labels=labels)
            run.report(J, rows, loss, labels)
    run.optimizer.zero_grad()
    (weight * (loss + penalty)).backward()
    run.optimizer.step()
    accuracy = (output.detach().argmax(1) == labels).mean(dtype=loss.dtype)
    return loss.detach(), penalty.detach(), accuracy


def validate(run: Classification, split: Split, where: str = "validation") -> dict[str, float]:
    """The scores of `score`. Raises an error if they show that the last step diverged."""
    try:
        scores = score(run.model, split)
    except NonFiniteError as error:
        raise run.diverged(where, "The network's output has NaN or inf.") from error
    if not math.isfinite(scores["loss"]):
        raise run.diverged(where, f"The loss is {scores['loss']}.")
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
    J = linearize(model.body, model.normalize(first), at=model.at)
    return {
        "loss": loss / len(split),
        "accuracy": correct / len(split),
        "sigma": float(spectral_norm(J).sigma.mean()),
        "sigma_images": len(first),
    }
