"""Losses that attacks increase or decrease, one number per image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """z_y − max_{k≠y} z_k: positive where the network is right."""
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return own - others.amax(1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


def targeted_dlr(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The difference of logits ratio (Croce & Hein, 2020). It does not depend on the scale of the logits.

    With fewer than four classes there is no ratio, and the difference itself is returned.
    """
    picked = logits.gather(1, torch.stack([targets, labels], 1))
    difference = picked[:, 0] - picked[:, 1]
    if logits.shape[1] < 4:
        return difference
    sorted_ = logits.sort(1).values
    return difference / (sorted_[:, -1] - (sorted_[:, -3] + sorted_[:, -4]) / 2 + 1e-12)


def loss_gradient(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """∇ₓ of each image's cross-entropy. The gradients of the weights do not change."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        loss = cross_entropy(model(x), labels).sum()
    return torch.autograd.grad(loss, x)[0]
