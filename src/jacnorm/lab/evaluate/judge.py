"""A stricter judge than the paper's: four strong attacks, and the worst of them per image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attacks import apgd_ce, apgd_targeted, loss_gradient, square
from ..data import Split, batches
from ..errors import EvaluationError
from ..progress import progress
from .adversarial import EPSILON
from .common import CHUNK, Result, generator_on, is_right, prepare, share
from .minimum_norm import linf_perturbed, need_foolbox

ITERATIONS = 100  # per gradient attack, as in AutoAttack
QUERIES = 5000  # for Square, as in AutoAttack
SUSPICIOUS = 0.002  # of all images: AutoAttack's own threshold for a warning
AT_LEAST = 3  # images, at least: on a small set one lucky query proves nothing

Attack = Callable[[Tensor, Tensor], Tensor]  # images, labels -> images


@dataclass(frozen=True)
class JudgeResult(Result):
    """`robust[i]` is the share of images that withstand all of the first i + 1 attacks.

    Claims should rest on the last entry. `alarm` gives reasons to doubt even that.
    """

    attacks: tuple[str, ...]
    robust: tuple[float, ...]
    clean: float
    only_by_square: int  # images that only Square fooled, and no white-box attack
    zero_gradients: int  # images where the loss has no gradient, so that gradient attacks cannot work
    alarm: str | None
    epsilon: float
    iterations: int
    queries: int
    images: int
    seed: int


def judge(
    model: nn.Module,
    split: Split,
    *,
    epsilon: float = EPSILON,
    iterations: int = ITERATIONS,
    queries: int = QUERIES,
    seed: int = 0,
) -> JudgeResult:
    """Robust accuracy in the ℓ∞ ball, after AutoAttack (Croce & Hein, 2020): APGD on the cross-entropy,
    APGD on the logit ratio towards every class, a minimum-norm attack, and Square.

    Each attack gets the images that withstood the attacks before. FMN replaces FAB.
    """
    if epsilon < 0 or iterations < 1 or queries < 1:
        raise EvaluationError(
            f"epsilon = {epsilon}, iterations = {iterations}, queries = {queries}: "
            "ε must be 0 or more, the others 1 or more"
        )
    need_foolbox()
    prepare(model, split)
    generator = generator_on(split.images.device, seed)
    attacks = _attacks(model, epsilon, iterations, queries, generator)
    alive = is_right(model, split)
    clean, standing = share(alive), []
    for name, attack in attacks.items():
        alive = alive & ~_fooled(model, split, alive, attack, epsilon, name)
        standing.append(int(alive.sum()))
    only_by_square = standing[-2] - standing[-1]
    blind = _zero_gradients(model, split)
    return JudgeResult(
        tuple(attacks),
        tuple(count / len(split) for count in standing),
        clean,
        only_by_square,
        blind,
        _alarm(only_by_square, blind, len(split)),
        epsilon,
        iterations,
        queries,
        len(split),
        seed,
    )


def _attacks(
    model: nn.Module, epsilon: float, iterations: int, queries: int, generator: torch.Generator
) -> dict[str, Attack]:
    within: dict[str, Any] = {"epsilon": epsilon, "generator": generator}
    return {
        "apgd-ce": lambda x, y: apgd_ce(model, x, y, iterations=iterations, **within),
        "apgd-t": lambda x, y: apgd_targeted(model, x, y, iterations=iterations, **within),
        "fmn": lambda x, y: linf_perturbed(model, x, y, steps=iterations),
        "square": lambda x, y: square(model, x, y, iterations=queries, whole_image=True, **within),
    }


def _fooled(
    model: nn.Module, split: Split, alive: Tensor, attack: Attack, epsilon: float, name: str
) -> Tensor:
    """Which of the remaining images the attack fools, (N,). Perturbations that are too large do not count."""
    fooled = torch.zeros_like(alive)
    index = alive.nonzero()[:, 0]
    with progress(len(index), name) as bar:
        for positions, images, labels in batches(split.take(index), CHUNK):
            found = attack(images, labels)
            within = (found - images).abs().amax((1, 2, 3)) <= epsilon + 1e-6
            with torch.no_grad():
                fooled[index[positions]] = within & (model(found).argmax(1) != labels)
            bar.update(len(images))
    return fooled


def _zero_gradients(model: nn.Module, split: Split) -> int:
    gradients = (loss_gradient(model, images, labels) for _, images, labels in batches(split, CHUNK))
    return sum(int((~gradient.flatten(1).any(1)).sum()) for gradient in gradients)


def are_suspicious(some: int, images: int) -> bool:
    return some > max(SUSPICIOUS * images, AT_LEAST - 1)


def _alarm(only_by_square: int, zero_gradients: int, images: int) -> str | None:
    reasons = []
    if are_suspicious(only_by_square, images):
        reasons.append(
            f"Square, which sees no gradient, fooled {only_by_square} images that the others did not"
        )
    if are_suspicious(zero_gradients, images):
        reasons.append(f"the loss has no gradient at {zero_gradients} of {images} images")
    if not reasons:
        return None
    return "gradients may be masked, the robust accuracy too high: " + ", and ".join(reasons)
