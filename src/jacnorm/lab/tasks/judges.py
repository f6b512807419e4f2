"""How good generated images are: a fixed classifier, trained here, and distances between its features.

The Fréchet distance is computed as for FID, but with the features of a small network. It is not FID, and it
cannot be compared with FID. With n images it is biased upwards by about a constant times 1/n (Chong &
Forsyth, 2020), so only distances with equal n can be compared. It depends on this classifier.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..config import RunConfig
from ..data import DataSet
from ..nets import Normalized
from ..progress import Progress
from ..run_files import load_run, locked
from ..train import train

NEIGHBOURS = 3  # for precision and recall
CHUNK = 1000
SMALL = 12  # pixels per side, at least, in LeNet


@dataclass(frozen=True)
class Judge:
    model: Normalized  # on pixels from 0 to 1, one channel
    classes: int

    @torch.no_grad()
    def features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Per image: the input of the last layer, and the mode. Each channel is judged as an image. Their
        features are concatenated, and their classes are the digits of the mode.
        """
        found = [self._of(chunk) for chunk in images.split(CHUNK)]
        features, modes = (torch.cat(of) for of in zip(*found, strict=True))
        return features, modes

    def _of(self, images: Tensor) -> tuple[Tensor, Tensor]:
        *layers, last = self.model.body.children()
        channels = images.shape[1]
        hidden = self.model.normalize(images.flatten(0, 1).unsqueeze(1))
        for layer in layers:
            hidden = layer(hidden)
        classes = last(hidden).argmax(1).view(-1, channels)
        places = self.classes ** torch.arange(channels - 1, -1, -1, device=images.device)
        return hidden.reshape(len(images), -1), (classes * places).sum(1)


def settings_of_judge(data: DataSet, epochs: int) -> RunConfig:
    net = "mlp" if data.train.images.shape[-1] < SMALL else "lenet"
    return RunConfig(data=data.name, net=net, method="none", epochs=epochs, batch_size=64, learning_rate=0.02)


def judge_of(data: DataSet, epochs: int, runs: Path) -> Judge:
    """The trained classifier.

    It is a run like any other. The first process that needs it trains it, and others wait.
    """
    config = settings_of_judge(data, epochs)
    folder = runs / config.id
    while not (folder / "weights.safetensors").exists():
        with locked(folder) as mine:
            if mine:
                print(f"Training the classifier for the evaluation, in {folder}", file=sys.stderr, flush=True)
                train(config, data, folder, resume=True, progress=Progress(only_bar=True))
        time.sleep(0 if mine else 1)
    return Judge(load_run(folder, config, data), len(data.classes))


@dataclass(frozen=True)
class Reference:
    """Real images, as the judge sees them."""

    judge: Judge
    features: Tensor
    modes: int  # the number of possible modes
    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, judge: Judge, images: Tensor) -> Reference:
        features, _ = judge.features(images)
        return cls(judge, features, judge.classes ** images.shape[1], *moments(features))

    def scores(self, images: Tensor, some: int = 2000) -> dict[str, float]:
        """Scores of made images. Precision and recall use only the first `some` images of both kinds."""
        features, modes = self.judge.features(images)
        ours = moments(features)
        precision, recall = precision_and_recall(self.features[:some], features[:some])
        count = torch.bincount(modes, minlength=self.modes)
        return {
            "frechet": frechet((self.mean, self.covariance), ours),
            "precision": precision,
            "recall": recall,
            "modes": float((count > 0).sum()),
            "kl": divergence_from_uniform(count),
        }


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    return features.double().mean(0), torch.cov(features.double().T)


def frechet(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """|m − n|² + tr(C + D − 2 (C D)^½), of Gaussians by means and covariances (Dowson & Landau, 1982)."""
    (m, C), (n, D) = a, b
    values, vectors = torch.linalg.eigh(C)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    both = torch.linalg.eigvalsh(root @ D @ root).clamp_min(0).sqrt().sum()
    return float((m - n).square().sum() + C.trace() + D.trace() - 2 * both)


def precision_and_recall(real: Tensor, made: Tensor) -> tuple[float, float]:
    """The part of made images that is near real images, and the reverse (Kynkäänniemi et al., 2019). An image
    of the other kind is near if it is no farther away than its own third neighbour.
    """
    return _covered(made, by=real), _covered(real, by=made)


def _covered(points: Tensor, by: Tensor) -> float:
    radius = torch.cdist(by, by).kthvalue(NEIGHBOURS + 1, dim=1).values  # the nearest is the image itself
    return float((torch.cdist(points, by) <= radius).any(1).double().mean())


def divergence_from_uniform(count: Tensor) -> float:
    """KL(made ‖ uniform) in nats. Even for perfect images it is about (modes − 1) / (2 n)."""
    p = count.double() / count.sum()
    p = p[p > 0]
    return float((p * (p * len(count)).log()).sum())
