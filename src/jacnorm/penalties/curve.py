"""The function h of a norm: its values and slopes, and whether a function can be one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

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
        with torch.inference_mode(False), torch.enable_grad():
            own = usable(norms.detach()).requires_grad_()
            values = _values_of(h, own)
            (slopes,) = torch.autograd.grad(values.sum(), own)
    flat_at_zero = (norms == 0) & ~slopes.isfinite()  # h such as √ and log, at J = 0
    return values.detach(), slopes.masked_fill(flat_at_zero, 0)


def usable(t: Tensor) -> Tensor:
    """A tensor that autograd can use, for a call under `inference_mode`."""
    return t.clone() if t.is_inference() else t


def check_curve(name: str, h: Shape | Curve) -> None:
    """Try h on three norms, so that a mistake is reported before training begins."""
    if callable(h):
        _slopes_of_first(h)
    elif h not in get_args(Shape):
        raise InputError(f"{name}={h!r}: choose one of {', '.join(get_args(Shape))}, or give a function.")


def check_mixing(h: Curve, reduction: str) -> None:
    """The gradient of a value may only go to its own norm, unless the values are summed."""
    if _slopes_of_first(h)[1:].any() and reduction in ("max", "none"):
        raise InputError(
            f"h mixes the norms of different samples, and reduction={reduction!r} needs a value for each "
            "sample that depends on its own norm: take reduction='mean' or 'sum'."
        )


@torch.inference_mode(False)
@torch.enable_grad()
def _slopes_of_first(h: Curve) -> Tensor:
    """The slopes of its first value in three norms."""
    norms = torch.tensor([0.5, 1.0, 2.0], device="cpu", requires_grad=True)
    try:
        values = h(norms)
    except Exception as error:
        raise InputError(
            f"h failed on a vector of {len(norms)} norms ({type(error).__name__}: {error}). It gets the "
            "norms of all samples of a batch, of any size, and must return one number for each."
        ) from error
    _check_values(values, norms)
    return torch.autograd.grad(values[0], norms)[0]


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
