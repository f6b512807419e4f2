"""Distance to the decision boundary, section 4.2.3: by sampling, by attack, and to first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ... import linearize
from ..data import Split
from ..errors import EvaluationError
from .common import CHUNK, Result, is_right, prepare, progress
from .minimum_norm import l2_distance
from .spheres import sampled_distance

DIRECTIONS = 100


@dataclass(frozen=True)
class BoundaryResult(Result):
    """Three distances for each point, 2-norm in pixels; None where nothing was found.

    `attack` and `sampled` are upper bounds of the distance, the second above it by what random directions
    miss. `first_order` is the distance if the network were linear, neither an upper nor a lower bound.
    """

    first_order: tuple[float | None, ...]
    attack: tuple[float | None, ...]
    sampled: tuple[float | None, ...]
    points: tuple[int, ...]  # their positions in the split
    left_out: int  # misclassified, by this network or by one it is compared with
    directions: int
    seed: int
    units: str = "pixels"


def boundary(
    model: nn.Module,
    split: Split,
    *,
    compared_with: Sequence[nn.Module] = (),
    directions: int = DIRECTIONS,
    seed: int = 0,
) -> BoundaryResult:
    """The distances of all points that this network and those it is compared with classify correctly.

    A point on the wrong side of the boundary has no distance to speak of, so it is left out and counted.
    With one seed all networks see the same directions.
    """
    if directions < 1:
        raise EvaluationError(f"directions = {directions}: it must be 1 or more")
    right = torch.ones(len(split), dtype=torch.bool, device=split.labels.device)
    for network in (model, *compared_with):
        prepare(network, split)
        right &= is_right(network, split)
    points = right.nonzero()[:, 0]
    if len(points) == 0:
        raise EvaluationError(f"none of these {len(split)} images is classified correctly by every network")
    x, y = split.images[points], split.labels[points]
    return BoundaryResult(
        first_order=_numbers(first_order_distance(model, x)),
        attack=_numbers(l2_distance(model, x, y)),
        sampled=_numbers(sampled_distance(model, x, directions=directions, seed=seed)),
        points=tuple(points.tolist()),
        left_out=len(split) - len(points),
        directions=directions,
        seed=seed,
    )


@torch.no_grad()
def first_order_distance(model: nn.Module, images: Tensor) -> Tensor:
    """min over the other classes k of (z_y − z_k) / ‖Jᵀ(e_y − e_k)‖, y the class predicted, (N,).

    The margin over the norm of its own Jacobian, a difference of two rows of J. That norm is at most √2 ‖J‖₂,
    so a small σ moves the boundary away: the distance is at least margin/(√2 σ). It is exact while the net
    is linear between image and boundary. All classes count, since the nearest boundary need not be that
    of the runner-up.
    """
    found = []
    with progress(len(images), "first-order distance") as bar:
        for x in images.split(CHUNK):
            J = linearize(model, x)
            logits, rows = J.output, J.dense()
            own = logits.argmax(1, keepdim=True)
            margins = logits.gather(1, own) - logits
            slopes = (rows.gather(1, own[..., None].expand(-1, 1, rows.shape[2])) - rows).norm(dim=2)
            # 0/0 is the class itself; a slope of zero never gets there.
            found.append((margins / slopes).scatter(1, own, torch.inf).amin(1))
            bar.update(len(x))
    return torch.cat(found)


def _numbers(distances: Tensor) -> tuple[float | None, ...]:
    return tuple(d if d < float("inf") else None for d in distances.tolist())
