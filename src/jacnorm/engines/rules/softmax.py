"""Softmax and its relatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .arithmetic import axes_of, insert_axes
from .table import Call, NoRule, rule

aten = torch.ops.aten


def _dim(dim: int | None) -> int:
    if dim is None:
        raise NoRule("a softmax over an axis that is not said")
    return dim


def _dtype(*given: Any) -> torch.dtype | None:
    """The third argument of torch.softmax, the fourth of F.softmax (after a stack level)."""
    return next((value for value in given if isinstance(value, torch.dtype)), None)


@rule("softmax", "special_softmax", runs=True)
def softmax(x: Tensor, dim: int | None = None, *more: Any, dtype: Any = None, _stacklevel: int = 3) -> Call:
    """p ⊙ (v − ⟨p, v⟩), which is its own transpose."""
    axis = _dim(dim)
    p = torch.softmax(x, axis, dtype=_dtype(*more, dtype))

    def scaled(p: Tensor, v: Tensor) -> Tensor:
        return aten._softmax_backward_data(v.to(p.dtype), p, axis, p.dtype)

    def terms(p: Tensor, c: Tensor, t: Tensor) -> list[Tensor]:
        s, q = (p * t).sum(axis, keepdim=True), (p * c).sum(axis, keepdim=True)
        return [c * (t - s) - t * q]

    return Call(scaled, scaled, (p,), terms, y=p)


@rule("log_softmax", "special_log_softmax", runs=True)
def log_softmax(
    x: Tensor, dim: int | None = None, *more: Any, dtype: Any = None, _stacklevel: int = 3
) -> Call:
    """F: t − ⟨p, t⟩. Fᵀ: c − p Σ c. With p = exp(y)."""
    axis = _dim(dim)
    y = torch.log_softmax(x, axis, dtype=_dtype(*more, dtype))
    return Call(
        lambda y, t: t - (y.exp() * t).sum(axis, keepdim=True),
        lambda y, c: aten._log_softmax_backward_data(c.to(y.dtype), y, axis, y.dtype),
        (y,),
        lambda y, c, t: [-c.sum(axis, keepdim=True) * y.exp() * t],
        y=y,
    )


@rule("logsumexp", "special_logsumexp")
def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Call:
    """F: ⟨p, t⟩ with p = softmax x. Fᵀ: c p."""
    axes = axes_of(dim, x.dim())

    def shares(x: Tensor) -> Tensor:
        return (x - x.logsumexp(axes, keepdim=True)).exp()

    def whole(c: Tensor) -> Tensor:
        return c if keepdim else insert_axes(c, axes)

    def terms(x: Tensor, c: Tensor, t: Tensor) -> list[Tensor]:
        p = shares(x)
        return [whole(c) * p * (t - (p * t).sum(axes, keepdim=True))]

    return Call(
        lambda x, t: (shares(x) * t).sum(axes, keepdim=keepdim),
        lambda x, c: whole(c) * shares(x),
        (x,),
        terms,
    )
