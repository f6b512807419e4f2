"""A weight to begin with, from the gradients of the loss and of the penalty."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ..engines.ancestry import weights_of
from ..errors import InputError
from ..pytorch.modules import modules_of, unchanged
from ..recording import linearize
from ..trust.checks import check_count
from .norm import NormPenalty
from .spectral import SpectralPenalty

SHARE = 0.01  # of the penalty's gradient in the loss's, in a single batch
ROUNDS = 3  # of the iteration, since nothing has been stored yet


@dataclass(frozen=True)
class Suggestion:
    """What `suggest_weight` has found. `print` says it in words."""

    weight: float
    loss: float  # means over the batches
    norm: float
    loss_gradient: float  # the length of the gradient in the model's weights
    norm_gradient: float  # of the penalty with weight 1
    batches: int
    samples: int

    def __str__(self) -> str:
        return (
            f"weight={self.weight:.2g}: on {self.batches} batches ({self.samples} samples) the loss is "
            f"{self.loss:.4g}, its gradient has length {self.loss_gradient:.3g}; the norm is "
            f"{self.norm:.4g}, and the penalty's gradient with weight 1 has length "
            f"{self.norm_gradient:.3g}. With this weight it is {SHARE:.0%} of the loss's: where a penalty "
            "begins to matter. Go up from here in factors of three."
        )


def suggest_weight(
    model: Callable[..., Any],
    loader: Iterable[Any],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    penalty: NormPenalty | None = None,
    batches: int = 8,
) -> Suggestion:
    """A weight with which the penalty's gradient is one percent of the loss's, on average over a few batches.

    Hand in a network that has learned without a penalty for a short while, and does not know its
    samples by heart yet: in that case the loss's gradient vanishes, and the suggestion with it. On LeNet it
    fell by half or two thirds between an untrained network and 600 steps, where σ rose by forty times, and
    with it the share of the penalty in the loss. Nothing of the model changes.

    loader
        Gives pairs of inputs and labels, as a DataLoader does.
    loss
        As `F.cross_entropy`: of the model's output and the labels, one number.
    penalty
        What the weight is for: SpectralPenalty, if it is left out. Its own weight does not matter, if it is
        not 0.

    >>> from jacnorm import suggest_weight
    >>> model, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.arange(8) % 3
    >>> found = suggest_weight(model, [(x, y)], torch.nn.functional.cross_entropy)
    >>> abs(found.weight * found.norm_gradient / found.loss_gradient - 0.01) < 1e-6
    True
    """
    check_count("batches", batches)
    penalty = _to_try(penalty)
    rows = [_of_batch(model, *_pair(batch), loss, penalty) for batch in islice(loader, batches)]
    if not rows:
        raise InputError("The loader gives no batches: there is nothing to measure.")
    table = torch.tensor([row[:4] for row in rows], dtype=torch.float64, device="cpu")
    value, norm, of_loss, of_norm = table.mean(0).tolist()
    if not (of_loss > 0 and of_norm > 0):
        which = "penalty" if of_loss > 0 else "loss"
        raise InputError(
            f"The {which} has no gradient in the model's parameters on these batches, so that nothing can be "
            "compared: is the network dead, or frozen?"
        )
    samples = sum(row[4] for row in rows)
    return Suggestion(SHARE * of_loss / of_norm, value, norm, of_loss, of_norm, len(rows), samples)


def _to_try(penalty: NormPenalty | None) -> NormPenalty:
    """A copy that pays at each call, with weight 1."""
    if penalty is None:
        return SpectralPenalty(1.0, ROUNDS)
    if not isinstance(penalty, NormPenalty):
        raise InputError(
            f"penalty={penalty!r}: a penalty on a norm of J is needed, such as SpectralPenalty()."
        )
    if penalty.reduction == "none":
        raise InputError("penalty with reduction='none' is no single number: give one with 'mean'.")
    own = copy.deepcopy(penalty)
    own.weight, own.steering, own.pace, own.fraction = 1.0, None, type(own.pace)(), 1.0
    return own


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    if not (isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[0], Tensor)):
        raise InputError(
            "The loader must give pairs of inputs and labels, as DataLoader(TensorDataset(x, y)) does; found "
            f"{type(batch).__name__}. Wrap what gives more: ((x, y) for x, y, *_ in loader)."
        )
    return batch[0], batch[1]


def _of_batch(
    model: Any, x: Tensor, labels: Tensor, loss: Any, penalty: NormPenalty
) -> tuple[float, float, float, float, int]:
    """Loss, mean norm, the lengths of both gradients, and how many samples these are of."""
    with unchanged(modules_of(model), x.device), torch.enable_grad():
        J = linearize(model, x)
        value, paid = loss(J.output, labels), penalty(J, labels=labels)
        if not isinstance(value, Tensor) or value.dim() > 0:
            raise InputError("The loss must be one number, a mean over the batch.")
        assert penalty.norms is not None
        leaves = [t for t in weights_of(J.output) if isinstance(t, nn.Parameter)]  # none, if it is frozen
        lengths = [_length(part, leaves) for part in (value, paid)]
    return float(value.detach()), float(penalty.norms.mean()), lengths[0], lengths[1], len(x)


def _length(value: Tensor, leaves: Sequence[Tensor]) -> float:
    if not (value.requires_grad and leaves):
        return 0.0
    found = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    lengths = [g.double().norm() for g in found if g is not None]
    return float(torch.stack(lengths).norm()) if lengths else 0.0
