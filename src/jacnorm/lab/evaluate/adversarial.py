"""Accuracy under PGD, TPGD and Square as they get stronger, section 4.2.2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ..attacks import pgd, square, tpgd
from ..attacks.gradient import Iterates
from ..data import Split, batches
from ..errors import EvaluationError
from ..progress import progress
from .common import CHUNK, Result, check_increasing, generator_on, is_right, prepare, share

EPSILON = 32 / 255  # the paper's δ
STEP_SIZE = 2 / 255  # the paper's η
GRADIENT_ATTACKS: dict[str, Callable[..., Iterates]] = {"pgd": pgd, "tpgd": tpgd}
ATTACKS = (*GRADIENT_ATTACKS, "square")
# The default strengths: steps of η, or queries.
STEPS = (0, 1, 2, 5, 10, 20, 40)
QUERIES = (0, 10, 30, 100, 300, 1000)


@dataclass(frozen=True)
class AttackResult(Result):
    """Accuracy for each ε (outer) and each number of iterations (inner). 0 iterations are the clean images.

    `last` is measured as in the paper, on the images that an attack with this ε and this many iterations
    returns. It may rise, since the last iterate is not always the worst. (TPGD does not know the labels, so
    it may even correct a mistake.) `worst` counts an image as lost if any perturbation within ε fools the
    network: the clean image, an earlier iterate, or an iterate of a smaller ε. A stronger attacker can use
    all of these. So `worst` never rises with ε or iterations, and robustness is judged by it.
    """

    attack: str
    epsilons: tuple[float, ...]
    iterations: tuple[int, ...]
    step_size: float | None  # None for Square
    last: tuple[tuple[float, ...], ...]
    worst: tuple[tuple[float, ...], ...]
    clean: float
    images: int
    seed: int


def adversarial(
    model: nn.Module,
    split: Split,
    attack: str,
    *,
    epsilons: tuple[float, ...] = (EPSILON,),
    iterations: tuple[int, ...] | None = None,
    seed: int = 0,
) -> AttackResult:
    """How accuracy falls as `attack` ("pgd", "tpgd" or "square") gets stronger."""
    if attack not in ATTACKS:
        raise EvaluationError(f"there is no attack {attack!r}: choose from {', '.join(ATTACKS)}")
    if iterations is None:
        iterations = QUERIES if attack == "square" else STEPS
    check_increasing("epsilons", epsilons)
    check_increasing("iterations", iterations)
    prepare(model, split)
    last: list[Tensor] = []
    worst: list[Tensor] = []
    with progress(len(epsilons) * len(split), attack) as bar:
        for epsilon in epsilons:
            each, ever = _at(model, split, attack, epsilon, iterations, seed, bar)
            last.append(each)
            worst.append(ever & worst[-1] if worst else ever)
    return AttackResult(
        attack,
        epsilons,
        iterations,
        None if attack == "square" else STEP_SIZE,
        _shares(last),
        _shares(worst),
        share(is_right(model, split)),
        len(split),
        seed,
    )


def _at(
    model: nn.Module,
    split: Split,
    attack: str,
    epsilon: float,
    iterations: tuple[int, ...],
    seed: int,
    bar: Any,
) -> tuple[Tensor, Tensor]:
    """For one ε: which images are right at the end, and which at every step; (strengths, N) each."""
    how = {"epsilon": epsilon, "generator": generator_on(split.images.device, seed)}
    follow: Callable[..., Tensor] = partial(_ascent, GRADIENT_ATTACKS.get(attack))
    wanted = list(iterations)
    if attack == "square":
        follow, wanted = _square, list(range(len(iterations)))
    parts = []
    for _, images, labels in batches(split, CHUNK):
        parts.append(follow(model, images, labels, iterations, **how))
        bar.update(len(images))
    right = torch.cat(parts, 1)
    return right[wanted], _so_far(right)[wanted]


def _ascent(
    attack: Any, model: nn.Module, images: Tensor, labels: Tensor, iterations: tuple[int, ...], **how: Any
) -> Tensor:
    """One row per number of iterations. A run to the largest number passes through all smaller ones."""
    steps = attack(model, images, labels, step_size=STEP_SIZE, **how)
    right = [_right(model, images, labels)]
    right += [logits.argmax(1) == labels for _, logits in islice(steps, 1, iterations[-1] + 1)]
    return torch.stack(right)


def _square(
    model: nn.Module, images: Tensor, labels: Tensor, iterations: tuple[int, ...], **how: Any
) -> Tensor:
    """One run per number of iterations, since the schedule of squares depends on this number."""
    right = []
    for count in iterations:
        found = square(model, images, labels, iterations=count, **how) if count else images
        right.append(_right(model, found, labels))
    return torch.stack(right)


def _so_far(right: Tensor) -> Tensor:
    """Which images are right in this row and in all rows above."""
    return right.long().cumprod(0).bool()


@torch.no_grad()
def _right(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return model(images).argmax(1) == labels


def _shares(rows: list[Tensor]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(share(strength) for strength in row) for row in rows)
