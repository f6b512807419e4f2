"""The function h of a norm: its values and slopes, and whether a function can be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError
from ..pytorch.tracing import inside_torch_func, tracing

Shape = Literal["identity", "square", "hinge"]
Curve = Callable[[Tensor], Tensor]


def with_slopes(h: Shape | Curve, threshold: float, norms: Tensor) -> tuple[Tensor, Tensor]:
    """h and h′ of each norm."""
    if h == "identity":
        return norms, torch.ones_like(norms)
    if h == "square":
        return norms.square(), 2 * norms
    if h == "hinge":
        return torch.relu(norms - threshold), (norms > threshold).to(norms.dtype)
    assert callable(h)
    if tracing() or inside_torch_func():
        values, pull = torch.func.vjp(h, norms)  # type: ignore[misc]
        (slopes,) = pull(torch.ones_like(values))
    else:
        with torch.enable_grad():
            own = norms.detach().requires_grad_()
            values = _values_of(h, own)
            (slopes,) = torch.autograd.grad(values.sum(), own)
    flat_at_zero = (norms == 0) & ~slopes.isfinite()  # h such as √ and log, at J = 0
    return values.detach(), slopes.masked_fill(flat_at_zero, 0)


def try_curve(h: Curve) -> None:
    """Try h on three norms, so that a mistake is reported before training begins."""
    norms = torch.tensor([0.5, 1.0, 2.0], device="cpu", requires_grad=True)
    try:
        values = h(norms)
    except Exception as error:
        raise InputError(
            f"h failed on a vector of {len(norms)} norms ({type(error).__name__}: {error}). It gets the "
            "norms of all samples of a batch, of any size, and must return one number for each."
        ) from error
    _check_values(values, norms)


def _values_of(h: Curve, norms: Tensor) -> Tensor:
    values = h(norms)
    _check_values(values, norms)
    return values


def _check_values(values: Tensor, norms: Tensor) -> None:
    if not isinstance(values, Tensor) or values.shape != norms.shape:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(
            f"h must give one number for each norm: for a vector of {len(norms)} it returned {found}. "
            "(reduction= says how the samples are combined.)"
        )
    if not values.requires_grad:
        raise InputError(
            "h has no gradient, so the penalty would have no effect: its result does not depend on the norms "
            "for autograd. Is there a detach, no_grad or item in h?"
        )
