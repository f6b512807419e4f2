"""Ways to penalize a Jacobian: this library's ways, forms that it does not use, and ways of its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ... import AnalyticPenalty, FrobeniusPenalty, SpectralBoundPenalty, SpectralPenalty
from ...penalties import Penalty
from . import forms, peers
from .by_hand import by_hand

WEIGHT = 0.01  # λ
BLOCK = 4  # steps in a row; with every=4 one of them has the penalty

# (x, index) -> (model(x), the penalty)
Penalize = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Way:
    name: str
    make: Callable[[nn.Module], Penalize]
    kind: str = "ours"  # or "form", which we tried and do not use, or "peer"
    estimates: bool = True  # whether the penalty is λ times an estimate of the mean σ
    block: int = BLOCK


def _ours(
    make: Callable[[], Penalty], indexed: bool, precision: torch.dtype | None = None
) -> Callable[[nn.Module], Penalize]:
    def make_for(model: nn.Module) -> Penalize:
        penalty = make()
        J = None  # kept until the next step replaces it, as in a usual training loop

        def penalize(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            nonlocal J
            J = penalty.linearize(model, x, precision=precision)
            return J.output, penalty(J, index=index if indexed else None)

        return penalize

    return make_for


def _other(sigma: Any, *options: Any) -> Callable[[nn.Module], Penalize]:
    """Ways written as a factory of (x, index) -> (output, σ of each sample)."""

    def make_for(model: nn.Module) -> Penalize:
        estimate = sigma(model, *options)

        def penalize(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
            output, found = estimate(x, index)
            return output, WEIGHT * found.mean()

        return penalize

    return make_for


DEFAULT, NO_INDEX = "spectral, index=", "spectral, no index"
RANDOM = "spectral, random start"
BY_HAND = "the same sweeps, written out"
FROBENIUS, BOUND = "Frobenius", "Spectral-Bound"
DOUBLE = "Frobenius, double backward"
PUSH, PUSH_BY_TORCH = "J v alone", "J v alone, torch.func.jvp"
HALF, FROBENIUS_HALF, PUSH_HALF = (f"{way}, bfloat16" for way in (DEFAULT, FROBENIUS, PUSH))
EXACT = Way("analytical: all rows of J", _ours(lambda: AnalyticPenalty(WEIGHT), False))
PAPERS_EXACT = Way("analytical: rows by autograd, SVD", _other(peers.rows_and_svd), "peer")

WAYS = (
    Way(DEFAULT, _ours(lambda: SpectralPenalty(WEIGHT), True)),
    Way(NO_INDEX, _ours(lambda: SpectralPenalty(WEIGHT), False)),
    Way(HALF, _ours(lambda: SpectralPenalty(WEIGHT), True, torch.bfloat16)),
    Way("spectral, index=, iterations=2", _ours(lambda: SpectralPenalty(WEIGHT, 2), True)),
    Way(RANDOM, _ours(lambda: SpectralPenalty(WEIGHT, start="random"), False)),
    # A budget looks at the time between steps, which is long between two blocks.
    Way(
        "spectral, budget=1.3",
        _ours(lambda: SpectralPenalty(WEIGHT, budget=1.3), True),
        estimates=False,
        block=40,
    ),
    Way("spectral, every=4", _ours(lambda: SpectralPenalty(WEIGHT, every=4), True), estimates=False),
    Way(
        "spectral, fraction=0.25",
        _ours(lambda: SpectralPenalty(WEIGHT, fraction=0.25), True),
        estimates=False,
    ),
    Way(FROBENIUS, _ours(lambda: FrobeniusPenalty(WEIGHT), False), estimates=False),
    Way(FROBENIUS_HALF, _ours(lambda: FrobeniusPenalty(WEIGHT), False, torch.bfloat16), estimates=False),
    Way(BOUND, _ours(lambda: SpectralBoundPenalty(WEIGHT), False), estimates=False),
    EXACT,
    Way(PUSH, _other(peers.push), estimates=False),
    Way(PUSH_HALF, _other(peers.push, torch.bfloat16), estimates=False),
    Way("stored u, backward form", _other(forms.StoredBackward), "form"),
    Way("stored u, ‖J v‖ back-propagated", _other(forms.StoredRefined), "form"),
    Way("stored v, forward form", _other(forms.StoredForward), "form"),
    Way("no memory, from the loss's gradient", _other(forms.FromLoss), "form"),
    Way(BY_HAND, lambda model: by_hand(model, WEIGHT), "form", estimates=False),
    Way(DOUBLE, _other(peers.frobenius), "peer", estimates=False),
    Way("Algorithm 1, unrolled", _other(peers.unrolled), "peer"),
    Way("double-backward power iteration, 1 round", _other(peers.double_backward, 1), "peer"),
    Way("double-backward power iteration, 10 rounds", _other(peers.double_backward, 10), "peer"),
    Way(PUSH_BY_TORCH, _other(peers.push_by_torch_func), "peer", estimates=False),
    Way("dual numbers", _other(peers.dual_numbers), "peer"),
)
