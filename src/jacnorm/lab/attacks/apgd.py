"""APGD (Croce & Hein, 2020): gradient ascent with momentum. It halves the step when progress stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Generator, Tensor, nn

from .losses import cross_entropy, targeted_dlr

Loss = Callable[[Tensor, Tensor], Tensor]  # logits (B, classes) and positions (B,) -> (B,)
MOMENTUM = 0.25
ENOUGH = 0.75  # share of the steps since the last check that must have improved the loss


def apgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    loss: Loss,
    *,
    epsilon: float,
    iterations: int,
    generator: torch.Generator,
) -> Tensor:
    """Adversarial images where the attack finds any, else the original images.

    `loss(logits, index)` is for the images at these positions. An image that fools the network needs no more
    steps, so only the others continue.
    """
    adversarial = images.clone()

    def retire(state: _State) -> _State:
        fooled = state.logits.argmax(1) != labels[state.index]
        adversarial[state.index[fooled]] = state.x[fooled]
        return state.at(~fooled)

    state = retire(_start(model, images, loss, epsilon, generator))
    for i, look in zip(range(iterations), _looks(iterations), strict=False):
        if len(state.index) == 0:
            break
        _step(state, images[state.index], epsilon, momentum=0.0 if i == 0 else MOMENTUM)
        _evaluate(state, model, loss)
        state = retire(state)
        if look:
            _halve_where_stuck(state, look)
    return adversarial


@dataclass
class _State:
    """The state of the search, for the images that are still attacked."""

    index: Tensor
    x: Tensor
    before: Tensor
    gradient: Tensor
    logits: Tensor
    loss: Tensor
    step: Tensor
    improved: Tensor  # steps since the last check
    best_x: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    best_at_look: Tensor
    halved: Tensor  # at the last check

    def at(self, mask: Tensor) -> _State:
        return _State(**{field.name: getattr(self, field.name)[mask] for field in fields(self)})


def _start(
    model: nn.Module, images: Tensor, loss: Loss, epsilon: float, generator: torch.Generator
) -> _State:
    drawn = 2 * torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype) - 1
    largest = drawn.abs().amax((1, 2, 3), keepdim=True)
    x = (images + epsilon * drawn / largest).clamp(0, 1)
    index = torch.arange(len(images), device=images.device)
    logits, value, gradient = _look_at(model, x, loss, index)
    step = torch.full((len(images), 1, 1, 1), 2 * epsilon, dtype=images.dtype, device=images.device)
    count = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    halved = torch.ones(len(images), dtype=torch.bool, device=images.device)
    return _State(index, x, x, gradient, logits, value, step, count, x, gradient, value, value, halved)


def _step(state: _State, images: Tensor, epsilon: float, momentum: float) -> None:
    def projected(x: Tensor) -> Tensor:
        return torch.clamp(x, images - epsilon, images + epsilon).clamp(0, 1)

    ahead = projected(state.x + state.step * state.gradient.sign())
    new = state.x + (1 - momentum) * (ahead - state.x) + momentum * (state.x - state.before)
    state.before, state.x = state.x, projected(new)


def _evaluate(state: _State, model: nn.Module, loss: Loss) -> None:
    last = state.loss
    state.logits, state.loss, state.gradient = _look_at(model, state.x, loss, state.index)
    state.improved = state.improved + (state.loss > last)
    better = state.loss > state.best_loss
    column = better[:, None, None, None]
    state.best_x = torch.where(column, state.x, state.best_x)
    state.best_gradient = torch.where(column, state.gradient, state.best_gradient)
    state.best_loss = torch.where(better, state.loss, state.best_loss)


def _halve_where_stuck(state: _State, since: int) -> None:
    """Halve the step where there is no progress. The search then goes on from the best point so far."""
    no_better = ~state.halved & (state.best_at_look >= state.best_loss)
    state.halved = (state.improved <= ENOUGH * since) | no_better
    column = state.halved[:, None, None, None]
    state.step = torch.where(column, state.step / 2, state.step)
    state.x = torch.where(column, state.best_x, state.x)
    state.gradient = torch.where(column, state.best_gradient, state.gradient)
    state.best_at_look = state.best_loss
    state.improved = torch.zeros_like(state.improved)


def _looks(iterations: int) -> Iterator[int]:
    """For each step: the number of steps since the last check if it is a check, else 0.

    Checks get more frequent.
    """
    steps = max(int(0.22 * iterations), 1)
    while True:
        yield from (0,) * (steps - 1)
        yield steps
        steps = max(steps - max(int(0.03 * iterations), 1), max(int(0.06 * iterations), 1))


def _look_at(model: nn.Module, x: Tensor, loss: Loss, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(x)
        each = loss(logits, index)
        (gradient,) = torch.autograd.grad(each.sum(), x)
    return logits.detach(), each.detach(), gradient


def apgd_ce(
    model: nn.Module, images: Tensor, labels: Tensor, *, epsilon: float, iterations: int, generator: Generator
) -> Tensor:
    """APGD on the cross-entropy. Adversarial images where it finds any, else the original images."""

    def loss(logits: Tensor, index: Tensor) -> Tensor:
        return cross_entropy(logits, labels[index])

    return apgd(model, images, labels, loss, epsilon=epsilon, iterations=iterations, generator=generator)


def apgd_targeted(
    model: nn.Module, images: Tensor, labels: Tensor, *, epsilon: float, iterations: int, generator: Generator
) -> Tensor:
    """APGD towards each other class in turn, the likeliest first.

    Images that are fooled are left out from then on.
    """
    with torch.no_grad():
        order = model(images).scatter(1, labels[:, None], -torch.inf).argsort(1, descending=True)
    found = images.clone()
    left = torch.arange(len(images), device=images.device)
    for targets in order.T[:-1]:  # the label itself comes last
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
