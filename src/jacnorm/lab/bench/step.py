"""An optimizer step, plain or with a penalty, to be timed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .ways import Penalize

Batch = tuple[Tensor, Tensor, Tensor]  # x, labels, index


def stepper(
    model: nn.Module, make: Callable[[nn.Module], Penalize] | None, batch: Batch
) -> Callable[[], None]:
    """One optimizer step on a copy of the model. The loss lives until the next takes its place."""
    model = copy.deepcopy(model)
    x, labels, index = batch
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.8)
    penalize = None if make is None else make(model)
    loss = None

    def step() -> None:
        nonlocal loss
        if penalize is None:
            loss = F.cross_entropy(model(x), labels)
        else:
            output, penalty = penalize(x, index)
            loss = F.cross_entropy(output, labels) + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
