"""Whether a target is met: σ measured during training, with starting weights that are far apart."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import Linearization, NormPenalty, SpectralPenalty, linearize, spectral_norm
from ..data import load
from ..nets import MLP, LeNet, Residual
from ..optimizers import SGD
from ..progress import progress
from ..tasks.gan import critic, generator
from .nets import Blocks
from .zoo import WIDTH, Data, Patches, digits

BATCH = 32
FACTORS = (0.01, 1.0, 100.0)  # starting weights, as multiples of the middle one
POINTS = 45  # points per curve. The last third has 15
MEASURED = 256  # samples
LATENT = 16
NEAR = 0.05

Way = Callable[[float, float], NormPenalty]  # of weight and target


def steered(weight: float, target: float) -> NormPenalty:
    return SpectralPenalty(weight, target=target)


@dataclass(frozen=True)
class Aim:
    """A network, its data, and the σ that it should reach."""

    name: str
    make: Callable[[], nn.Module]
    data: Callable[[Path | None], Data]
    target: float
    middle: float  # a weight that leads to about this σ
    steps: int
    rate: float = 2e-3  # of Adam, or of SGD if momentum is given
    momentum: float | None = None


def images(name: str) -> Callable[[Path | None], Data]:
    @cache
    def found(root: Path | None) -> Data:
        split = load(name, root).train
        return (split.images - split.images.mean()) / split.images.std(), split.labels

    return found


def small_images(root: Path | None) -> Data:
    """KMNIST in 8×8 pixels: more samples than a transformer can learn by heart in a minute."""
    x, labels = images("kmnist")(root)
    return F.avg_pool2d(F.pad(x, (2, 2, 2, 2), value=float(x.min())), 4), labels


def table(_: Path | None) -> Data:
    """Breast cancer: 569 samples with 30 features."""
    from sklearn.datasets import load_breast_cancer

    x, y = (torch.from_numpy(part) for part in load_breast_cancer(return_X_y=True))
    x = x.float()
    return (x - x.mean(0)) / x.std(0), y.long()


def small_resnet() -> nn.Module:
    """With batch norm."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(Residual(8, 8, 1), Residual(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


AIMS = (
    Aim("LeNet, KMNIST", LeNet, images("kmnist"), 0.5, 0.7, 2000, 0.01, 0.8),
    Aim("LeNet, FashionMNIST", LeNet, images("fashion-mnist"), 0.5, 0.7, 2000, 0.01, 0.8),
    Aim("MLP, table", partial(MLP, (30, 64, 64, 2)), table, 0.5, 0.3, 2000, 5e-4),
    Aim("ResNet, digits", small_resnet, lambda _: digits(), 2.0, 0.1, 1500),
    Aim(
        "transformer, small KMNIST",
        lambda: nn.Sequential(Patches(), Blocks(WIDTH, 4, 2)),
        small_images,
        1.0,
        0.1,
        1500,
    ),
    Aim(
        "GAN's critic, digits", lambda: critic(16, 1, 8, normalize=False), lambda _: digits(), 1.0, 0.3, 2000
    ),
)


def targets(aim: Aim, root: Path | None, factors: Iterable[float] = FACTORS) -> dict[str, Any]:
    """The curves of σ and λ, one for each starting weight."""
    runs = [course(aim, root, factor * aim.middle) for factor in factors]
    return {"target": aim.target, "middle": aim.middle, "runs": runs}


def course(aim: Aim, root: Path | None, weight: float, way: Way = steered) -> dict[str, Any]:
    """One training."""
    steps, sigma, weights = list[int](), list[float](), list[float]()
    with torch.random.fork_rng(), progress(aim.steps, f"{aim.name}, λ = {weight:g}", " steps") as bar:
        torch.manual_seed(0)
        lesson, penalty = lesson_of(aim, root), way(weight, aim.target)
        for step in range(1, aim.steps + 1):
            lesson.slow_down(step / aim.steps)
            lesson.step(penalty)
            if step * POINTS // aim.steps > len(steps):
                steps.append(step)
                sigma.append(lesson.sigma())
                weights.append(penalty.weight)
            bar.update()
        return {"start": weight, "steps": steps, "sigma": sigma, "weight": weights, "score": lesson.score()}


def last_third(curve: list[float]) -> list[float]:
    return curve[-(len(curve) // 3) :]


class Lesson:
    """A classifier that learns."""

    def __init__(self, aim: Aim, root: Path | None):
        self.net, self.rate = aim.make(), aim.rate
        self.x, self.labels = aim.data(root)
        self.draw = torch.Generator().manual_seed(1)
        parameters = list(self.net.parameters())
        self.optimizer: Any = (
            torch.optim.Adam(parameters, aim.rate)
            if aim.momentum is None
            else SGD(parameters, aim.rate, aim.momentum, 0.0)
        )

    def slow_down(self, done: float) -> None:
        """The learning rate falls to a tenth along half a cosine, as is usual in training."""
        rate = self.rate * (0.55 + 0.45 * math.cos(math.pi * done))
        if isinstance(self.optimizer, SGD):
            self.optimizer.learning_rate = rate
        else:
            self.optimizer.param_groups[0]["lr"] = rate

    def step(self, penalty: NormPenalty) -> None:
        rows = self.rows(BATCH)
        J = linearize(self.net, self.x[rows])
        self._descend(F.cross_entropy(J.output, self.labels[rows]) + penalty(J))

    def rows(self, count: int) -> Tensor:
        return torch.randint(len(self.x), (count,), generator=self.draw)

    def _descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def sigma(self) -> float:
        """The mean σ in training mode: batch norm uses the statistics of each batch."""
        net, draw = copy.deepcopy(self.net), self.draw.get_state()
        with torch.no_grad():
            found = [self._norms(linearize(net, x)) for x in self.measured().split(BATCH)]
        self.draw.set_state(draw)
        return float(torch.cat(found).mean())

    def _norms(self, J: Linearization) -> Tensor:
        return spectral_norm(J).sigma

    def measured(self) -> Tensor:
        """The samples on which σ is measured, the same each time."""
        return self.x[torch.linspace(0, len(self.x) - 1, MEASURED).long()]

    @torch.no_grad()
    def score(self) -> float:
        """Accuracy on training data."""
        self.net.eval()
        x, labels = self.x[:5000], self.labels[:5000]
        return float((self.net(x).argmax(1) == labels).float().mean())


class Duel(Lesson):
    """A critic and its generator with the Wasserstein loss. σ is taken between real and made images."""

    def __init__(self, aim: Aim, root: Path | None):
        super().__init__(aim, root)
        self.generator = generator(LATENT, 16, 1, 8)
        self.x = self.x / self.x.abs().max()
        self.other = torch.optim.Adam(self.generator.parameters(), aim.rate / 4, (0.5, 0.999))

    def step(self, penalty: NormPenalty) -> None:
        real, made = self.x[self.rows(BATCH)], self.made(BATCH)
        J = linearize(
            self.net, torch.lerp(made.detach(), real, torch.rand(BATCH, 1, 1, 1, generator=self.draw))
        )
        contrast = self.net(made.detach()).mean() - self.net(real).mean()
        self._descend(contrast + penalty(J))
        self.other.zero_grad()
        (-self.net(made).mean()).backward()
        self.other.step()

    def slow_down(self, done: float) -> None:
        """The rates stay constant, since a game between two networks does not converge."""

    def made(self, count: int) -> Tensor:
        made: Tensor = self.generator(torch.randn(count, LATENT, generator=self.draw))
        return made

    def measured(self) -> Tensor:
        self.draw.manual_seed(2)
        real = super().measured()
        with torch.no_grad():
            made = copy.deepcopy(self.generator)(torch.randn(MEASURED, LATENT, generator=self.draw))
        return torch.lerp(made, real, torch.rand(MEASURED, 1, 1, 1, generator=self.draw))

    @torch.no_grad()
    def score(self) -> float:
        """The mean score of real images minus the mean score of made images."""
        rows = self.rows(1000)
        return float(self.net(self.x[rows]).mean() - self.net(self.made(1000)).mean())


def lesson_of(aim: Aim, root: Path | None) -> Lesson:
    return (Duel if "critic" in aim.name else Lesson)(aim, root)
