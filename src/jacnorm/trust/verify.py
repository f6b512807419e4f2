"""Checks of the whole model. (`engines/checking.py` compares each call with autograd.)"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..engines.ancestry import custom_functions
from ..engines.checking import COARSE, FLOOR
from ..engines.tape import Tape
from ..errors import CoupledSamplesError, UnsupportedModelError
from ..pytorch.precision import at_least_single


def check_independent(
    tape: Tape, output: Tensor, *, thoroughly: bool = True, agreed: Callable[[int], int] = int
) -> bool:
    """Whether samples were found to be independent. False if nothing can be found, as with only one sample.

    Raises `CoupledSamplesError` if one sample depends on another. Cotangents of a group of samples are pulled
    back, and all other samples must get zero. The groups split the batch by each binary digit of the
    position, so any two samples are separated by one of the groups. One group is enough if only a part of the
    model is new (`thoroughly=False`). If several processes share the model, `agreed` returns the largest
    number among them, and all make that many sweeps.
    """
    seen, coupled = len(output) > 1, False
    count = agreed(len(output))
    groups = halves(count, output.device)
    for chosen in groups if agreed(thoroughly) else islice(groups, 1):
        chosen = chosen[: len(output)]
        with torch.no_grad():
            pulled = tape.vjp(_probe(output) * chosen.view(-1, *[1] * (output.dim() - 1)))
        if pulled is None:
            return False
        size = pulled.abs().reshape(len(pulled), -1).amax(1)
        if bool(chosen.all()) or not bool(chosen.any()):  # this group only separates samples elsewhere
            continue
        own, others = float(size[chosen].max()), float(size[~chosen].max())
        seen = seen and 0 < own < float("inf")
        coupled |= others > min(1e3 * torch.finfo(pulled.dtype).eps, 0.01) * own
    if agreed(coupled):
        raise CoupledSamplesError(
            "The output of one sample depends on the input of another, so there is no Jacobian per "
            "sample. Look for an operation across the first axis: a mean, softmax or norm over the "
            "batch, a reshape that loses the batch axis. (Batch norm in training mode is handled, "
            "unless torch.jit hides it: pass the module that was scripted, or put it into eval mode.)"
        )
    return seen


def refusal(tape: Tape, output: Tensor, x: Tensor, eps: float) -> str | None:
    """Why autograd's graph gives neither J v nor the gradient of Jᵀu, or None if it gives both.

    If a backward pass computes something outside of autograd, PyTorch silently ignores that part when it
    differentiates the backward pass. J v is then not the transpose of Jᵀu.
    """
    u, v = _probe(output), _probe(x)
    with torch.no_grad():
        try:
            pulled, pushed = tape.vjp(u), tape.jvp(v)
        except UnsupportedModelError as error:
            return str(error)
    if pulled is None:
        return None
    if max(float(pulled.norm()), float(pushed.norm())) <= _rounding(output, x, eps):
        return None  # this Jacobian consists of rounding errors, so there is nothing to compare
    distance = _asymmetry(pushed, u, pulled, v)
    # Reduced precision inside kernels (TF32) must not count as an error. NaN is reported elsewhere.
    if distance <= min(max(4 * eps**0.5, 0.01), COARSE) or math.isnan(distance):
        return None
    return one_way(", ".join(f.__name__ for f in custom_functions(x, output)))


def one_way(names: str) -> str:
    suspects = f" (look at {names})" if names else ""
    return (
        f"The backward pass of a layer cannot be differentiated{suspects}: it is marked "
        "@once_differentiable, or it leaves autograd (detach, no_grad, NumPy, a kernel of its own). J v, and "
        "the gradient of Jᵀu, would be wrong. Write its backward with operations that PyTorch can "
        "differentiate, give it a rule (jn.rule), or replace the layer. To measure, use spectral_norm(J)."
    )


def _rounding(output: Tensor, x: Tensor, eps: float) -> float:
    """The size that rounding errors of the output would give to J."""
    size = float(output.detach().abs().max()) / max(float(x.detach().abs().max()), torch.finfo(x.dtype).tiny)
    return FLOOR * eps * min(size, 1.0)


def doubts(x: Tensor, output: Tensor) -> str | None:
    """An error of the gradients of J that is possible and cannot be detected, or None."""
    functions = custom_functions(x, output)
    found = [f.__name__ for f, nodes in functions.items() if any(map(_keeps_constants, nodes))]
    if not found:
        return None
    return (
        f"{', '.join(found)} saves tensors without a gradient for its backward pass. If they were computed "
        "from its input, autograd treats them as constants: J is right, but the gradient of a penalty misses "
        "the part through them. Save arguments and results only, or run torch.autograd.gradgradcheck."
    )


def _keeps_constants(node: Any) -> bool:
    """Whether a node has saved real numbers without a gradient. (Masks are whole numbers.)"""
    return any(t is not None and t.is_floating_point() and not t.requires_grad for t in node.saved_tensors)


def _asymmetry(pushed: Tensor, u: Tensor, pulled: Tensor, v: Tensor) -> float:
    """The relative difference of ⟨J v, u⟩ and ⟨v, Jᵀu⟩, which should be equal, for random u and v."""
    pushed, pulled = _scaled_together(pushed, pulled)
    size = torch.maximum(pushed.norm(), pulled.norm()).clamp_min(1)
    return float(((pushed * u).sum() - (pulled * v).sum()).abs() / size)


def _scaled_together(*vectors: Tensor) -> list[Tensor]:
    """The vectors divided by their largest entry, so that squares neither overflow nor underflow."""
    vectors = tuple(t.to(at_least_single(t.dtype)) for t in vectors)
    # If weights are close to zero, products are almost only rounding. They then stay below 1, and callers,
    # which divide by at least 1, do not compare their digits.
    finfo = torch.finfo(vectors[0].dtype)
    scale = torch.stack([t.abs().max() for t in vectors]).max().clamp_min(finfo.tiny / finfo.eps)
    return [t / scale for t in vectors]


def halves(count: int, device: torch.device) -> Iterator[Tensor]:
    """Masks of a batch. Any two samples are separated by one of them."""
    positions = torch.arange(count, device=device)
    for digit in range((count - 1).bit_length()):
        group = (positions >> digit) % 2 == 0
        yield group
        yield ~group


def _probe(like: Tensor) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(1)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)
