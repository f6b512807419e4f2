"""The state of PyTorch's optimizers as tensors by name, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = optimizer.state_dict()["state"]
    return {f"{i}.{name}": torch.as_tensor(value) for i, of in state.items() for name, value in of.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The settings of the optimizer do not change."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        i, name = key.split(".", 1)
        state.setdefault(int(i), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
