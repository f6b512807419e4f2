"""Optimizers, and their state as tensors by name, for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

KINDS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
NAMES = ("sgd", *KINDS)


class SGD:
    """The step of `torch.optim.SGD`, without the hooks and records around it.

    Those take as long as the step itself on a LeNet. Momentum begins at zero. That gives the same
    numbers as in PyTorch, which copies the first gradient.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, momentum: float, weight_decay: float
    ):
        self.parameters = list(parameters)
        self.velocity: list[Tensor] = [torch.zeros_like(p) for p in self.parameters]
        self.learning_rate, self.momentum, self.weight_decay = learning_rate, momentum, weight_decay
        self.fused = not any(p.is_complex() for p in self.parameters)  # PyTorch's kernel is for real numbers

    def tensors(self) -> dict[str, Tensor]:
        return {str(i): v for i, v in enumerate(self.velocity)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for i, velocity in enumerate(self.velocity):
            if str(i) in tensors:  # older files lack the velocity of a parameter without a gradient so far
                velocity.copy_(tensors[str(i)])

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


class Adam:
    """PyTorch's Adam or AdamW. AdamW's weight decay does not go through the gradient."""

    def __init__(self, name: str, parameters: Iterable[nn.Parameter], learning_rate: float, decay: float):
        self._optimizer = KINDS[name](parameters, learning_rate, weight_decay=decay)
        self.zero_grad, self.step = self._optimizer.zero_grad, self._optimizer.step

    @property
    def learning_rate(self) -> float:
        return self._optimizer.param_groups[0]["lr"]

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._optimizer.param_groups[0]["lr"] = value

    def tensors(self) -> dict[str, Tensor]:
        return optimizer_tensors(self._optimizer)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        load_optimizer(self._optimizer, tensors)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": torch.as_tensor(value) for i, of in state.items() for name, value in of.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the state. The settings do not change."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        i, name = key.split(".", 1)
        state.setdefault(int(i), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
