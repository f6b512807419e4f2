"""APGD as AutoAttack uses it: on the cross-entropy, and towards every other class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .apgd import Loss, apgd
from .losses import cross_entropy, targeted_dlr


def apgd_ce(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    iterations: int,
    generator: torch.Generator,
) -> Tensor:
    """Adversarial images where there are any, the images themselves where not."""

    def loss(logits: Tensor, index: Tensor) -> Tensor:
        return cross_entropy(logits, labels[index])

    return apgd(model, images, labels, loss, epsilon=epsilon, iterations=iterations, generator=generator)


def apgd_targeted(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    iterations: int,
    generator: torch.Generator,
) -> Tensor:
    """The same towards each other class in turn, the likeliest first, for what is still standing."""
    with torch.no_grad():
        order = model(images).scatter(1, labels[:, None], -torch.inf).argsort(1, descending=True)
    found = images.clone()
    left = torch.arange(len(images), device=images.device)
    for targets in order.T[:-1]:  # the last is the label itself
        x, y, t = images[left], labels[left], targets[left]
        loss = _towards(t, y)
        found[left] = apgd(model, x, y, loss, epsilon=epsilon, iterations=iterations, generator=generator)
        with torch.no_grad():
            left = left[model(found[left]).argmax(1) == y]
        if len(left) == 0:
            break
    return found


def _towards(targets: Tensor, labels: Tensor) -> Loss:
    def loss(logits: Tensor, index: Tensor) -> Tensor:
        return targeted_dlr(logits, labels[index], targets[index])

    return loss
