"""PGD (Madry et al., 2018) and TPGD (Zhang et al., 2019), step by step as torchattacks 3.5.1 takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

Iterates = Iterator[tuple[Tensor, Tensor]]  # images and their logits; the first is the start


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    step_size: float,
    generator: Generator,
) -> Iterates:
    """Ascent of the cross-entropy from a uniformly random point of the ball. It never ends.

    Iterate k is the result of an attack with k iterations. Take as many as you need.
    """
    # Drawn from the interval, not scaled from [0, 1). So the draws equal those of torchattacks in every bit.
    drawn = torch.empty_like(images).uniform_(-epsilon, epsilon, generator=generator)
    start = (images + drawn).clamp(0, 1)
    return _ascent(model, images, start, lambda logits: F.cross_entropy(logits, labels), epsilon, step_size)


def perturbed(
    model: nn.Module, images: Tensor, labels: Tensor, *, epsilon: float, steps: int, generator: Generator
) -> Tensor:
    """The images after `steps` steps of PGD with step size 2.5 ε/steps, as in the training of Madry et al.

    Meanwhile the network is in evaluation mode: batch norm's statistics do not change, and dropout is off.
    """
    was_training = model.training
    model.eval()
    step_size = 2.5 * epsilon / steps
    iterates = pgd(model, images, labels, epsilon=epsilon, step_size=step_size, generator=generator)
    found, _ = next(islice(iterates, steps, None))
    model.train(was_training)
    return found


def tpgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    step_size: float,
    generator: Generator,
) -> Iterates:
    """Ascent of the Kullback–Leibler divergence from the clean prediction. Labels are not used.

    The start has Gaussian noise of 0.001, and may be outside the ball. All later iterates are inside.
    """
    with torch.no_grad():
        clean = model(images).softmax(1)
    drawn = torch.randn(images.shape, generator=generator, device=images.device, dtype=images.dtype)
    start = (images + 0.001 * drawn).clamp(0, 1)

    def divergence(logits: Tensor) -> Tensor:
        return F.kl_div(logits.log_softmax(1), clean, reduction="sum")

    return _ascent(model, images, start, divergence, epsilon, step_size)


def _ascent(
    model: nn.Module,
    images: Tensor,
    x: Tensor,
    loss: Callable[[Tensor], Tensor],
    epsilon: float,
    step_size: float,
) -> Iterates:
    while True:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            logits = model(x)
        yield x.detach(), logits.detach()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(loss(logits), x)
        stepped = x.detach() + step_size * gradient.sign()
        x = (images + (stepped - images).clamp(-epsilon, epsilon)).clamp(0, 1)
