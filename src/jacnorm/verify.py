"""Trust, but verify: the first time a model comes by, its products are checked against autograd's."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .engines.autograd import Graph
from .engines.tape import Tape
from .errors import CoupledSamplesError


@dataclass
class Verdict:
    independent: bool = False  # samples do not see each other
    layerwise: bool = False  # every call has a rule, and the products are autograd's


_verdicts: weakref.WeakKeyDictionary[Any, dict[bool, Verdict]] = weakref.WeakKeyDictionary()


def verdict(model: Any) -> Verdict:
    """What earlier runs of this model have shown, in training and evaluation apart."""
    mode = getattr(model, "training", False)
    try:
        return _verdicts.setdefault(model, {}).setdefault(mode, Verdict())
    except TypeError:  # cannot be hashed or weakly referenced: looked at each time
        return Verdict()


def check_independent(graph: Graph, output: Tensor) -> None:
    """Pull cotangents of a random half of the samples back: the other half must get nothing."""
    count = len(output)
    if count == 1:
        return
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    chosen = (order < (count + 1) // 2).to(output.device)
    with torch.no_grad():
        mask = chosen.view(-1, *[1] * (output.dim() - 1))
        pulled = graph.vjp(_probe(output) * mask)
    if pulled is None:
        return
    size = pulled.abs().flatten(1).amax(1) if pulled.dim() > 1 else pulled.abs()
    if size[~chosen].max() > 1e3 * torch.finfo(pulled.dtype).eps * size[chosen].max():
        raise CoupledSamplesError(
            "The output of one sample depends on the input of another, so there is no Jacobian per "
            "sample. (Batch norm in training mode is taken care of.) Look for an operation across the "
            "first axis: a mean, softmax or norm over the batch, a reshape that loses the batch axis."
        )


def disagreement(tape: Tape, graph: Graph, output: Tensor) -> str | None:
    """Why the layerwise products cannot be trusted, or None if Jᵀu is autograd's for a random u."""
    with torch.no_grad():
        u = _probe(output)
        ours, theirs = tape.vjp(u), graph.vjp(u)
    if ours is None or theirs is None:
        return None if ours is theirs else "the recorded calls do not link input and output"
    error = (ours - theirs).norm() / theirs.norm().clamp_min(torch.finfo(theirs.dtype).tiny)
    if error <= torch.finfo(theirs.dtype).eps ** 0.5:
        return None
    return f"its products differ from autograd's by {error:.1e} (please report this model)"


def _probe(output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return u.to(output)
