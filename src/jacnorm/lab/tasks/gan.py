"""The task gan: a generator and its critic. Methods differ in how they limit the slope of the critic.

A critic has one output. Its Jacobian is a row, and σ is the length of the gradient. So SpectralPenalty, R1
and WGAN-GP's penalty are functions of the same σ, at different points.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as normalized_weight

from ... import linearize, spectral_norm
from ...errors import NonFiniteError
from ...penalties import GradientPenalty, Penalty, SpectralPenalty
from ..checkpoint import part, prefixed
from ..data import DataSet
from ..data import load as load_data
from ..data.catalog import SETS
from ..errors import UsageError
from ..optimizers import load_optimizer, optimizer_tensors
from ..progress import Progress
from ..run import Run, Share
from ..wording import did_you_mean
from .judges import Judge, Reference, judge_of
from .kinds import FIRST_WEIGHT, GANSettings

IMAGES = 28  # pixels per side, at most, in these networks
BETA2 = 0.999
SIGMA_IMAGES = 500
FINAL = 13  # times as many images at the end: 26,000, as in papers that count modes
STACKED = 3
SAMPLES = 64  # in the picture


@dataclass(frozen=True)
class Material:
    data: DataSet
    judge: Judge


class GAN(Run):
    def __init__(self, config: GANSettings, material: Material, device: torch.device | str):
        super().__init__(config, Share())
        self.config, self.device = config, torch.device(device)
        self.pixels = material.data.train.images.to(device)
        _, _, size, _ = self.pixels.shape
        colours = STACKED if config.stacked else 1
        self.generator = generator(config.latent, config.channels, colours, size).to(device)
        self.critic = critic(config.channels, colours, size, config.method == "spectral-norm").to(device)
        betas = (config.momentum, BETA2)
        self.optimizers = {
            name: torch.optim.Adam(net.parameters(), config.learning_rate, betas)
            for name, net in (("generator", self.generator), ("critic", self.critic))
        }
        self.penalty = make_penalty(config)
        self.work = config.steps
        self.draw = torch.Generator(self.device)
        material.judge.model.to(device)
        judged = material.data.test.images.to(device)
        if config.stacked:
            judged = stacked(judged, torch.Generator(self.device).manual_seed(0))  # the same for all runs
        self.reference = Reference.of(material.judge, judged)

    def real(self, count: int) -> Tensor:
        """Scaled to −1 … 1, like the generator's images."""
        colours = STACKED if self.config.stacked else 1
        drawn = torch.randint(len(self.pixels), (count, colours), generator=self.draw, device=self.device)
        return 2 * self.pixels[drawn].squeeze(2) - 1

    def made(self, count: int) -> Tensor:
        z = torch.randn(count, self.config.latent, generator=self.draw, device=self.device)
        return self.generator(z)

    def epoch(self, epoch: int, progress: Progress) -> dict[str, Any]:
        begin = time.perf_counter()
        self.draw.manual_seed(self.seed(epoch))
        self.generator.train()
        self.critic.train()
        losses = torch.zeros(3)
        for step in range(self.work):
            try:
                found = torch.tensor(self.step())
            except NonFiniteError as error:
                raise self.diverged(f"step {step + 1}", "The critic's output has NaN or inf.") from error
            if not found.isfinite().all():
                raise self.diverged(f"step {step + 1}", "A loss is NaN or inf.")
            losses += found
            progress.step_done(1)
        seconds = time.perf_counter() - begin
        of_critic, penalty, of_generator = (losses / self.work).tolist()
        return {
            "epoch": epoch + 1,
            "critic_loss": of_critic,
            "penalty": penalty,
            **({} if self.penalty is None else {"weight": self.penalty.weight}),
            "generator_loss": of_generator,
            **self.scores(self.config.judged),
            "seconds": time.perf_counter() - begin,
            "milliseconds_per_step": 1000 * seconds / self.work,
        }

    def step(self) -> tuple[float, float, float]:
        """`critic_steps` steps of the critic and one of the generator. Returns both losses and penalty."""
        batch = self.config.batch_size
        for _ in range(self.config.critic_steps):
            with torch.no_grad():
                made = self.made(batch)
            loss, penalty = self.critic_loss(self.real(batch), made)
            descend(self.optimizers["critic"], loss + penalty)
        self.critic.requires_grad_(False)
        of_generator = self.generator_loss(self.critic(self.made(batch)))
        descend(self.optimizers["generator"], of_generator)
        self.critic.requires_grad_(True)
        return loss.item(), penalty.item(), of_generator.item()

    def critic_loss(self, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        """R1 is taken at real images. The other penalties are taken between real and made images."""
        if self.penalty is None:
            return self.contrast(self.critic(real), self.critic(made)), torch.zeros(())
        if self.config.method == "r1":
            J = linearize(self.critic, real)
            return self.contrast(J.output, self.critic(made)), self.penalty(J)
        share = torch.rand(len(real), 1, 1, 1, generator=self.draw, device=self.device)
        penalty = self.penalty(linearize(self.critic, torch.lerp(made, real, share)))
        return self.contrast(self.critic(real), self.critic(made)), penalty

    def contrast(self, real: Tensor, made: Tensor) -> Tensor:
        if self.config.method == "wgan-gp":
            return made.mean() - real.mean()
        return F.softplus(made).mean() + F.softplus(-real).mean()

    def generator_loss(self, scores: Tensor) -> Tensor:
        return -scores.mean() if self.config.method == "wgan-gp" else F.softplus(-scores).mean()

    @torch.no_grad()
    def scores(self, count: int) -> dict[str, float]:
        """Scores of made images. Their noise is the same in every epoch and run."""
        self.generator.eval()
        self.critic.eval()
        self.draw.manual_seed(0)
        made = torch.cat([self.made(min(1000, count - i)) for i in range(0, count, 1000)])
        real, few = self.real(SIGMA_IMAGES), made[:SIGMA_IMAGES]
        real = real[: len(few)]
        places = {"real": real, "made": few, "between": torch.lerp(few, real, 0.5)}
        sigma = {
            f"sigma_{name}": float(spectral_norm(linearize(self.critic, x)).sigma.mean())
            for name, x in places.items()
        }
        return {**self.reference.scores((made + 1) / 2), **sigma}

    def test(self) -> dict[str, float]:
        return self.scores(FINAL * self.config.judged)

    def tensors(self) -> dict[str, Tensor]:
        kept: dict[str, Mapping[str, Any]] = {"generator": self.generator.state_dict()}
        kept["critic"] = self.critic.state_dict()
        kept |= {f"{name}-adam": optimizer_tensors(one) for name, one in self.optimizers.items()}
        kept["penalty"] = {} if self.penalty is None else self.penalty.state_dict()
        return {name: t for key, of in kept.items() for name, t in prefixed(key, of).items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.generator.load_state_dict(part("generator", tensors))
        self.critic.load_state_dict(part("critic", tensors))
        for name, optimizer in self.optimizers.items():
            load_optimizer(optimizer, part(f"{name}-adam", tensors))
        if self.penalty is not None:
            self.penalty.load_state_dict(part("penalty", tensors))

    def weights(self) -> dict[str, Tensor]:
        nets = {"generator": self.generator, "critic": self.critic}
        return {name: t for key, net in nets.items() for name, t in prefixed(key, net.state_dict()).items()}

    def line(self, m: Mapping[str, Any]) -> str:
        return (
            f"Fréchet {m['frechet']:.2f}  precision {m['precision']:.2f} recall {m['recall']:.2f}  "
            f"modes {m['modes']:.0f}  σ {m['sigma_between']:.3f}  "
            f"{m['milliseconds_per_step']:.0f} ms per step"
        )

    @torch.no_grad()
    def keep_pictures(self, folder: Path) -> None:
        from ..pictures import image_grid  # here, since importing matplotlib is slow

        self.generator.eval()
        self.draw.manual_seed(0)
        image_grid(folder / "samples.png", (self.made(SAMPLES) + 1) / 2)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def stacked(pixels: Tensor, draw: torch.Generator) -> Tensor:
    """Stacked images. Each has three images as its channels."""
    drawn = torch.randint(len(pixels), (len(pixels), STACKED), generator=draw, device=pixels.device)
    return pixels[drawn].squeeze(2)


def critic(channels: int, colours: int, size: int, normalize: bool) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(colours, channels, 4, 2, 1),
        nn.Conv2d(channels, 2 * channels, 4, 2, 1),
        nn.Linear(2 * channels * (size // 4) ** 2, 1),
    ]
    if normalize:
        layers = [normalized_weight(layer) for layer in layers]
    first, second, last = layers
    return nn.Sequential(first, nn.LeakyReLU(0.2), second, nn.LeakyReLU(0.2), nn.Flatten(), last)


def generator(latent: int, channels: int, colours: int, size: int) -> nn.Sequential:
    wide, small = 2 * channels, size // 4
    return nn.Sequential(
        *(nn.Linear(latent, wide * small**2), nn.Unflatten(1, (wide, small, small))),
        *(nn.BatchNorm2d(wide), nn.ReLU(), nn.ConvTranspose2d(wide, channels, 4, 2, 1)),
        *(nn.BatchNorm2d(channels), nn.ReLU(), nn.ConvTranspose2d(channels, colours, 4, 2, 1)),
        nn.Tanh(),
    )


def make_penalty(config: GANSettings) -> Penalty | None:
    """None for `none`, and for `spectral-norm`, which is in the layers."""
    makers = {
        "wgan-gp": lambda: GradientPenalty(config.weight, None, h=lambda s: (s - 1) ** 2),
        "r1": lambda: GradientPenalty(config.weight, None, h="square"),
        "spectral": lambda: SpectralPenalty(config.weight),
        "spectral-target": lambda: SpectralPenalty(FIRST_WEIGHT, target=config.target),
    }
    return makers[config.method]() if config.method in makers else None


def load(config: GANSettings, data_root: Path | str | None, runs: Path) -> Material:
    data = load_data(config.data, data_root)
    check_images(data)
    return Material(data, judge_of(data, config.judge_epochs, runs))


def check_names(config: GANSettings) -> None:
    if config.data not in SETS:
        raise UsageError(f"there is no data set {config.data!r}: {did_you_mean(config.data, SETS)}")


def check_images(data: DataSet) -> None:
    _, channels, size, _ = data.train.images.shape
    if channels != 1 or size > IMAGES or size % 4:
        raise UsageError(
            f"data = {data.name!r}: its images are {channels}×{size}×{size}; the networks of --task gan are "
            "for grey ones of 28×28 or fewer: fashion-mnist, kmnist, mnist or digits"
        )


def check_start(config: GANSettings, data: Material) -> None:
    """There is nothing to check here. Mistakes are found earlier."""


def start(config: GANSettings, data: Material, device: torch.device | str, share: Share | None = None) -> GAN:
    torch.manual_seed(config.seed)
    return GAN(config, data, device)


def told(config: GANSettings, result: dict[str, Any]) -> str:
    test = result["test"]
    images = "stacked " if config.stacked else ""
    return (
        f"{config.label} on {images}{config.data}: Fréchet distance {test['frechet']:.2f} (not FID), "
        f"precision {test['precision']:.2f}, recall {test['recall']:.2f}, {test['modes']:.0f} modes, "
        f"mean σ of the critic {test['sigma_between']:.3f}"
    )
