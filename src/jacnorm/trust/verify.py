"""Trust, but verify. `engines/checking.py` compares each call with autograd; here are the checks of the
whole model."""

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
    """Whether samples were seen to be independent; False where there was nothing to see it by.

    Cotangents of some samples are pulled back, and the others must get nothing. The groups split the
    batch by each binary digit of the position, so that any two samples are apart in one of them; one
    group is enough where only a part of the model is new. Where several processes have to do this together,
    `agreed` gives the largest number that any of them has: all sweep as often as that one.
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
        if bool(chosen.all()) or not bool(chosen.any()):  # it sets other processes' samples apart
            continue
        own, others = float(size[chosen].max()), float(size[~chosen].max())
        seen = seen and 0 < own < float("inf")
        coupled |= others > min(1e3 * torch.finfo(pulled.dtype).eps, 0.01) * own
    if agreed(coupled):
        raise CoupledSamplesError(
            "The output of one sample depends on the input of another, so there is no Jacobian per "
            "sample. Look for an operation across the first axis: a mean, softmax or norm over the "
            "batch, a reshape that loses the batch axis. (Batch norm in training mode is taken care "
            "of, unless torch.jit hides it: pass the module that was scripted, or put it into eval mode.)"
        )
    return seen


def refusal(tape: Tape, output: Tensor, x: Tensor, eps: float) -> str | None:
    """Why autograd's graph gives neither J v nor the gradient of Jᵀu, or None.

    PyTorch leaves out without a word what a backward pass did where autograd does not look. Then J v is
    not the transpose of Jᵀu.
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
        return None  # a Jacobian of rounding errors has no digits to compare
    distance = _asymmetry(pushed, u, pulled, v)
    # Reduced precision inside kernels (TF32) must not count; NaN is others' business.
    if distance <= min(max(4 * eps**0.5, 0.01), COARSE) or math.isnan(distance):
        return None
    return one_way(", ".join(f.__name__ for f in custom_functions(x, output)))


def one_way(names: str) -> str:
    suspects = f" (look at {names})" if names else ""
    return (
        f"The backward pass of a layer cannot be differentiated{suspects}: it is marked "
        "@once_differentiable, or it leaves autograd (detach, no_grad, NumPy, a kernel of its own). J v, and "
        "the gradient of Jᵀu, would be wrong. Write its backward with operations that PyTorch can "
        "differentiate, give it a rule (jn.rule), or replace the layer. To measure, spectral_norm(J) will do."
    )


def _rounding(output: Tensor, x: Tensor, eps: float) -> float:
    """The size that rounding errors of the output would give to J."""
    size = float(output.detach().abs().max()) / max(float(x.detach().abs().max()), torch.finfo(x.dtype).tiny)
    return FLOOR * eps * min(size, 1.0)


def doubts(x: Tensor, output: Tensor) -> str | None:
    """What may be wrong with gradients of J and cannot be found out, or None."""
    functions = custom_functions(x, output)
    found = [f.__name__ for f, nodes in functions.items() if any(map(_keeps_constants, nodes))]
    if not found:
        return None
    return (
        f"{', '.join(found)} saves tensors without a gradient for its backward pass. If it has computed them "
        "from its input, autograd takes them for constants: J is right, and the gradient of a penalty lacks "
        "what goes through them. Save arguments and results only, or try torch.autograd.gradgradcheck."
    )


def _keeps_constants(node: Any) -> bool:
    """(Masks are whole numbers.)"""
    return any(t is not None and t.is_floating_point() and not t.requires_grad for t in node.saved_tensors)


def _asymmetry(pushed: Tensor, u: Tensor, pulled: Tensor, v: Tensor) -> float:
    """How far ⟨J v, u⟩ and ⟨v, Jᵀu⟩, which are the same, are apart for random u and v."""
    pushed, pulled = _scaled_together(pushed, pulled)
    size = torch.maximum(pushed.norm(), pulled.norm()).clamp_min(1)
    return float(((pushed * u).sum() - (pulled * v).sum()).abs() / size)


def _scaled_together(*vectors: Tensor) -> list[Tensor]:
    """By their largest entry, which is then 1, so that squares neither over- nor underflow."""
    vectors = tuple(t.to(at_least_single(t.dtype)) for t in vectors)
    # Where weights have died away, products are rounded to next to nothing: they stay below 1, and callers,
    # who divide by no less than 1, do not compare their digits.
    finfo = torch.finfo(vectors[0].dtype)
    scale = torch.stack([t.abs().max() for t in vectors]).max().clamp_min(finfo.tiny / finfo.eps)
    return [t / scale for t in vectors]


def halves(count: int, device: torch.device) -> Iterator[Tensor]:
    """Masks of a batch, so that any two samples are apart in one of them."""
    positions = torch.arange(count, device=device)
    for digit in range((count - 1).bit_length()):
        group = (positions >> digit) % 2 == 0
        yield group
        yield ~group


def _probe(like: Tensor) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(1)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)
