"""How far estimates of σ are from the exact σ, figure 5 (right)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ... import Linearization, linearize, product_bound, spectral_norm
from ...estimators import lanczos
from ...estimators.operator import normalized, norms
from ..data import Split, batches
from ..errors import EvaluationError
from ..nets import Normalized
from ..progress import progress
from .common import CHUNK, Result, check_increasing, generator_on, prepare

ITERATIONS = (1, 2, 3, 5, 7, 10, 15, 20)
BOUND_IMAGES = 50  # the product bound is slow, and nearly the same for every image


@dataclass(frozen=True)
class EstimationResult(Result):
    """Mean over the images of |estimate − σ|/σ after each number of rounds. σ is for the normalized input.

    A round is one product with J and one with Jᵀ. `random` is the paper's estimate: v random, u = J v, ‖Jᵀu‖.
    `warm` is SpectralPenalty's estimate: u stored, v = Jᵀu, ‖J v‖. Lanczos takes three more products. `bound`
    is the error of ∏‖Wˡ‖₂, which needs no rounds.
    """

    iterations: tuple[int, ...]
    random: tuple[float, ...]
    lanczos: tuple[float, ...]
    warm: tuple[float, ...] | None  # None if no vectors were given
    bound: float | None  # None if the network is not piecewise linear
    images: int
    seed: int


@torch.no_grad()
def estimation(
    model: Normalized,
    split: Split,
    *,
    stored: Tensor | None = None,
    iterations: tuple[int, ...] = ITERATIONS,
    seed: int = 0,
) -> EstimationResult:
    """Relative errors of σ on these images.

    `stored` is the `u` of SpectralPenalty, with one row per image.
    """
    prepare(model, split, pixels=False)
    check_increasing("iterations", iterations, least=1)
    if stored is not None and len(stored) != len(split):
        raise EvaluationError(f"there are {len(stored)} stored vectors for {len(split)} images")
    generator = generator_on(split.images.device, seed)
    totals: dict[str, Tensor] = {}
    with progress(len(split), "estimates of σ") as bar:
        for index, images, _ in batches(split, CHUNK):
            J = linearize(model.body, model.normalize(images))
            exact = spectral_norm(J, tol=1e-5).sigma
            u = None if stored is None else stored.to(J.device)[index].view(J.output_shape)
            for name, estimates in _estimates(J, _random(J, generator), u, iterations).items():
                totals[name] = totals.get(name, 0) + _errors(estimates, exact)
            bar.update(len(images))
    means = {name: tuple((total / len(split)).tolist()) for name, total in totals.items()}
    return EstimationResult(
        iterations,
        means["random"],
        means["lanczos"],
        means.get("warm"),
        _bound(model, split),
        len(split),
        seed,
    )


def _random(J: Linearization, generator: torch.Generator) -> Tensor:
    v = torch.randn(J.input_shape, generator=generator, device=J.device, dtype=J.dtype)
    return normalized(J.jvp(v))


def _estimates(
    J: Linearization, random: Tensor, stored: Tensor | None, iterations: tuple[int, ...]
) -> dict[str, Tensor]:
    rounds = torch.tensor(iterations) - 1
    space = [lanczos(J, tol=1e-9, max_iterations=k).sigma for k in iterations]
    found = {"lanczos": torch.stack(space), "random": _power(J, random, iterations[-1])[0][rounds]}
    if stored is not None:
        found["warm"] = _power(J, stored, iterations[-1])[1][rounds]
    return found


def _power(J: Linearization, u: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """‖Jᵀu‖ and, half a round later, ‖J v‖, for each round of power iteration."""
    backward, forward = [], []
    for _ in range(rounds):
        w = J.vjp(u)
        u = J.jvp(normalized(w))
        backward.append(norms(w))
        forward.append(norms(u))
        u = normalized(u)
    return torch.stack(backward), torch.stack(forward)


def _errors(estimates: Tensor, exact: Tensor) -> Tensor:
    """Errors, summed over the images. An image with σ = 0 has no error."""
    return ((estimates - exact).abs() / exact.clamp_min(torch.finfo(exact.dtype).tiny)).double().sum(1).cpu()


def _bound(model: Normalized, split: Split) -> float | None:
    J = linearize(model.body, model.normalize(split.images[:BOUND_IMAGES]))
    if J.tape is None or J.tape.whole:
        return None
    exact = spectral_norm(J).sigma
    return float(((product_bound(J) - exact) / exact).mean())
