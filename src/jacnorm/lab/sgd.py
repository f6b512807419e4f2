"""Stochastic gradient descent with momentum, called as directly as PyTorch allows."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd


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
