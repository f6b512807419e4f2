"""Distance to the decision boundary, section 4.2.3: by sampling, by attack, and to first order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ... import linearize
from ..data import Split
from ..errors import EvaluationError
from ..progress import progress
from .common import CHUNK, Result, generator_on, is_right, prepare
from .minimum_norm import l2_distance

DIRECTIONS = 100


@dataclass(frozen=True)
class BoundaryResult(Result):
    """Three distances per point, in the 2-norm of pixels. None where nothing was found.

    `attack` and `sampled` are upper bounds of the distance. `sampled` is larger, since random directions miss
    the nearest point. `first_order` is the distance if the network were linear. It is not a bound.
    """

    first_order: tuple[float | None, ...]
    attack: tuple[float | None, ...]
    sampled: tuple[float | None, ...]
    points: tuple[int, ...]  # their positions in the split
    left_out: int  # misclassified by this network or by another network of the comparison
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
    """The distances of all points that all networks of the comparison classify correctly.

    A point on the wrong side of the boundary has no such distance, so it is left out and counted. With the
    same seed all networks see the same directions.
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

    It is the margin divided by the norm of the margin's Jacobian, a difference of two rows of J. This norm is
    at most √2 ‖J‖₂, so the distance is at least margin/(√2 σ): a small σ moves the boundary away. The
    distance is exact if the net is linear between image and boundary. All classes count, since the runner-up
    need not have the nearest boundary.
    """
    found = []
    with progress(len(images), "first-order distance") as bar:
        for x in images.split(CHUNK):
            J = linearize(model, x)
            logits, rows = J.output, J.dense()
            own = logits.argmax(1, keepdim=True)
            margins = logits.gather(1, own) - logits
            slopes = (rows.gather(1, own[..., None].expand(-1, 1, rows.shape[2])) - rows).norm(dim=2)
            # 0/0 is the class itself. With a slope of zero the boundary is never reached.
            found.append((margins / slopes).scatter(1, own, torch.inf).amin(1))
            bar.update(len(x))
    return torch.cat(found)


def _numbers(distances: Tensor) -> tuple[float | None, ...]:
    return tuple(d if d < float("inf") else None for d in distances.tolist())


POINTS = 64  # at a time
BATCH = 1000  # images in one pass; more do not fit the cache of a CPU
FIRST_RADIUS, LAST_RADIUS = 1 / 16, 1024.0  # in pixels; the search doubles in between
RESOLUTION = 1 / 128  # of the radius found, or of the first one tried if that is larger


@torch.no_grad()
def sampled_distance(model: nn.Module, images: Tensor, *, directions: int, seed: int = 0) -> Tensor:
    """The smallest radius at which one of `directions` random rays has left the class of its image, (N,).

    Binary search assumes that a ray which is inside at some radius is inside at all smaller ones. So only the
    rays that are outside there can be the first to leave. A tenth of the rays finds a first radius, by
    doubling and halving. Most of the other rays are then needed only once. (On a LeNet this was nearly four
    times as fast as doubling with all rays, and within 1 % of its result.) The answer is an upper bound of
    the distance: random directions miss the nearest point, and a ray may leave and come back. inf: no ray
    left its class.
    """
    generator = generator_on(images.device, seed)
    found = []
    with progress(len(images), "distance by sampling") as bar:
        for points in images.split(POINTS):
            found.append(_distance(model, points, unit_rays(points, directions, generator)))
            bar.update(len(points))
    return torch.cat(found)


def unit_rays(points: Tensor, directions: int, generator: torch.Generator) -> Tensor:
    """Directions, uniform on the sphere, (points, directions, *pixels)."""
    shape = (len(points), directions, *points.shape[1:])
    drawn = torch.randn(shape, generator=generator, device=points.device, dtype=points.dtype)
    return drawn / drawn.flatten(2).norm(dim=2)[..., None, None, None]


def _distance(model: nn.Module, points: Tensor, rays: Tensor) -> Tensor:
    few = rays[:, : max(1, rays.shape[1] // 10)]
    start = _Search(model, points, few)
    start.double()
    start.halve()
    search = _Search(model, points, rays)
    search.attempt(start.outer, start.outer.isfinite())
    search.double()
    search.halve()
    return search.outer


class _Search:
    """Per point, the largest radius known to be inside and the smallest radius known to be outside."""

    def __init__(self, model: nn.Module, points: Tensor, rays: Tensor):
        self.model, self.points, self.rays = model, points, rays
        self.own = model(points).argmax(1)
        self.left = torch.ones(rays.shape[:2], dtype=torch.bool, device=points.device)  # may be the first
        self.outer = torch.full((len(points),), torch.inf, dtype=points.dtype, device=points.device)
        self.inner = torch.zeros_like(self.outer)

    def double(self) -> None:
        radius = FIRST_RADIUS
        while radius <= LAST_RADIUS and self.outer.isinf().any():
            self.attempt(torch.full_like(self.outer, radius), self.outer.isinf())
            radius *= 2

    def halve(self) -> None:
        while (coarse := self._coarse()).any():
            self.attempt((self.inner + self.outer) / 2, coarse)

    def _coarse(self) -> Tensor:
        fine = RESOLUTION * self.outer.clamp_min(FIRST_RADIUS)
        return self.outer.isfinite() & (self.outer - self.inner > fine)

    def attempt(self, radius: Tensor, chosen: Tensor) -> None:
        """Try one radius per chosen point. It becomes the outer if a ray is outside, else the inner."""
        outside = torch.zeros_like(self.left)
        point, ray = (self.left & chosen[:, None]).nonzero(as_tuple=True)
        for p, r in zip(point.split(BATCH), ray.split(BATCH), strict=True):
            moved = self.points[p] + radius[p, None, None, None] * self.rays[p, r]
            outside[p, r] = self.model(moved).argmax(1) != self.own[p]
        crossed = chosen & outside.any(1)
        self.left[crossed] = outside[crossed]
        self.outer = torch.where(crossed, radius, self.outer)
        self.inner = torch.where(chosen & ~crossed, radius, self.inner)
