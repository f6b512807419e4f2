"""A training under way, and how it starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ..penalties import (
    AnalyticPenalty,
    FrobeniusPenalty,
    MarginPenalty,
    Penalty,
    SpectralBoundPenalty,
    SpectralPenalty,
)
from .config import RunConfig
from .data import DataSet
from .errors import UsageError
from .nets import Normalized, build, fingerprint, is_own
from .share import Share


class SGD:
    """The step of `torch.optim.SGD`, without the hooks and records around it.

    Those take as long as the step itself on a LeNet. Momentum begins at zero, which gives the same numbers
    as PyTorch's way of copying the first gradient.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, momentum: float, weight_decay: float
    ):
        self.parameters = list(parameters)
        self.velocity: list[Tensor] = [torch.zeros_like(p) for p in self.parameters]
        self.learning_rate, self.momentum, self.weight_decay = learning_rate, momentum, weight_decay
        self.fused = not any(p.is_complex() for p in self.parameters)  # PyTorch's kernel is for real numbers

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """A parameter without a gradient stays as it is, and so does its velocity."""
        moving = [
            (p, p.grad, v) for p, v in zip(self.parameters, self.velocity, strict=True) if p.grad is not None
        ]
        if not moving:
            return
        parameters, gradients, velocity = (list(part) for part in zip(*moving, strict=True))
        sgd(
            parameters,
            gradients,
            velocity,
            foreach=False,
            fused=self.fused,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


@dataclass
class Run:
    """Everything that an epoch changes."""

    config: RunConfig
    share: Share
    model: Normalized
    body: nn.Module  # model.body, or that spread over processes
    optimizer: SGD
    penalty: Penalty | None
    noise: torch.Generator  # where attacks start
    history: list[dict[str, Any]]  # one entry an epoch
    fingerprint: str | None  # of a user's own net


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
    common: dict[str, Any] = {"every": config.every}
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
