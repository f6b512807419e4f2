"""Square (Andriushchenko et al., 2020): random search that uses only the logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .losses import margin

FIRST_PART = 0.8  # share of the image that the first square covers
# After this many of 10,000 queries the squares halve in area.
HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


@torch.no_grad()
def square(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    iterations: int,
    generator: torch.Generator,
    whole_image: bool = False,
) -> Tensor:
    """Adversarial images where the attack finds any, else the original images.

    As in torchattacks 3.5.1, the schedule of squares depends on `iterations`, so a short attack is not the
    beginning of a long one. Every image has its own squares; in torchattacks a batch shares them. In
    torchattacks and here, squares do not reach the last row and column. This makes the attack weaker on small
    images. With `whole_image` squares reach everywhere, as the authors describe it.
    """
    right = model(images).argmax(1) == labels
    columns = _signs((len(images), images.shape[1], 1, images.shape[3]), images, generator)
    best = (images + epsilon * columns).clamp(0, 1)
    margins = margin(model(best), labels)
    for i in range(iterations):
        side = _side(i, iterations, images)
        change = 2 * epsilon * _squares(images, side, whole_image, generator)
        active = (right & (margins > 0)).nonzero()[:, 0]
        if len(active) == 0:
            break
        x = images[active]
        candidate = torch.clamp(best[active] + change[active], x - epsilon, x + epsilon).clamp(0, 1)
        found = margin(model(candidate), labels[active])
        better = found < margins[active]
        best[active[better]] = candidate[better]
        margins[active[better]] = found[better]
    fooled = right & (model(best).argmax(1) != labels)
    return torch.where(fooled[:, None, None, None], best, images)


def _side(i: int, iterations: int, images: Tensor) -> int:
    of_ten_thousand = i / iterations * 10_000
    halvings = sum(int(of_ten_thousand) > after for after in HALVED_AFTER)
    pixels = images.shape[2] * images.shape[3]
    return max(1, round(math.sqrt(FIRST_PART / 2**halvings * pixels)))


def _squares(images: Tensor, side: int, whole_image: bool, generator: torch.Generator) -> Tensor:
    """One square of ±1 per image, with a random sign per channel. It is zero outside the square."""
    count, channels, height, width = images.shape
    inside = []
    for length in (height, width):
        drawn = torch.rand(count, 1, generator=generator, device=images.device)
        first = (drawn * (length - side + whole_image)).long()
        position = torch.arange(length, device=images.device)
        inside.append((position >= first) & (position < first + side))
    rows, columns = inside
    signs = _signs((count, channels, 1, 1), images, generator)
    return signs * (rows[:, None, :, None] & columns[:, None, None, :])


def _signs(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype) - 1).sign()
