"""Numbers moved, joined or picked out of a tensor, and functions that change them by a constant."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tape import sum_to
from . import shapes
from .products import shape_of
from .table import LIST, Call, NoRule, rule, scaled_by

Map = Callable[[Tensor], Tensor]


def returning(
    forms: Sequence[torch.Size], device: Any, move: Callable[..., Tensor]
) -> Callable[[Tensor], Any]:
    """Fᵀ of a map that moves numbers of tensors of these shapes to some places, and zeros to all others.

    Moving the positions 1, 2, 3, … shows where each number comes from. 0 means that it comes from nowhere.
    """
    sizes = [form.numel() for form in forms]
    origins: list[Tensor] = []  # found on first use, since forward mode alone does not need them

    def pull(c: Tensor) -> list[Tensor]:
        if not origins:
            places = torch.arange(1, sum(sizes) + 1, dtype=torch.float64, device=device).split(sizes)
            moved = move(*[p.view(form) for p, form in zip(places, forms, strict=True)])
            origins.append(moved.long().flatten())
        back = c.new_zeros(sum(sizes) + 1).index_add(0, origins[0], c.flatten())[1:].split(sizes)
        return [part.view(form) for part, form in zip(back, forms, strict=True)]

    return pull


def _moved(function: Callable[..., Tensor]) -> Any:
    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Call:
        def move(v: Tensor) -> Tensor:
            return function(v, *args, **kwargs)

        pull = returning([x.shape], x.device, move)
        return Call(move, lambda c: pull(c)[0])

    return apply


for _name in ("diag", "diagflat", "take"):
    rule(_name)(_moved(getattr(Tensor, _name)))


def _joined(join: Callable[[Any], Tensor]) -> Any:
    def apply(tensors: Sequence[Tensor]) -> Call:
        forms = [t.shape for t in tensors]

        def push(*ts: Tensor | None) -> Tensor:
            known = next(t for t in ts if t is not None)
            return join([known.new_zeros(f) if t is None else t for t, f in zip(ts, forms, strict=True)])

        return Call(push, returning(forms, tensors[0].device, lambda *places: join(places)))

    return apply


for _name in ("hstack", "vstack", "row_stack", "dstack", "column_stack"):
    rule(_name, data=LIST)(_joined(getattr(torch, _name)))
rule("dsplit", parts=True)(shapes.split)


def _with_axes(function: Map) -> Any:
    def apply(x: Any) -> Call:
        if not isinstance(x, Tensor):
            raise NoRule("several tensors at once")
        shape = x.shape
        return Call(function, lambda c: c.reshape(shape))

    return apply


for _name in ("atleast_1d", "atleast_2d", "atleast_3d"):
    rule(_name)(_with_axes(getattr(torch, _name)))


@rule("diag_embed")
def diagonal_matrix(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Call:
    return Call(lambda v: v.diag_embed(offset, dim1, dim2), lambda c: c.diagonal(offset, dim1, dim2))


@rule("linalg_diagonal")
def diagonal(x: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Call:
    return _moved(Tensor.diagonal)(x, offset, dim1, dim2)


@rule("trace")
def trace(x: Tensor) -> Call:
    eye = torch.eye(*x.shape, dtype=x.dtype, device=x.device)
    return Call(lambda v: v.trace(), lambda c: c * eye)


@rule("sum_to_size")
def summed(x: Tensor, *size: Any) -> Call:
    shape = x.shape
    return Call(lambda v: v.sum_to_size(*size), lambda c: c.expand(shape))


@rule("masked_select")
def masked_select(x: Tensor, mask: Tensor) -> Call:
    shape, full = x.shape, torch.broadcast_shapes(x.shape, mask.shape)
    return Call(
        lambda v: v.masked_select(mask),
        lambda c: sum_to(c.new_zeros(full).masked_scatter(mask, c), shape),
    )


@rule("max_unpool1d", "max_unpool2d", "max_unpool3d")
def unpool(x: Tensor, indices: Tensor, kernel_size: Any, *args: Any, **kwargs: Any) -> Call:
    """Indices count the places of a channel. (Where two are the same, autograd adds.)"""
    dims = x.dim() - 2 if isinstance(kernel_size, int) else len(kernel_size)
    function: Any = getattr(F, f"max_unpool{dims}d")
    y = function(x, indices, kernel_size, *args, **kwargs)
    shape, full, flat = x.shape, y.shape, indices.flatten(-dims)
    return Call(
        lambda v: v.new_zeros(full).flatten(-dims).scatter_add(-1, flat, v.flatten(-dims)).view(full),
        lambda c: c.flatten(-dims).gather(-1, flat).view(shape),
        y=y,
    )


# Functions that change a number by at most a constant. -----------------------------------------------


@rule("frac", "conj", "conj_physical", "resolve_conj", "resolve_neg", "real")
def unchanged(x: Tensor) -> Call:
    if not x.is_floating_point():
        raise NoRule(f"a function of {x.dtype} numbers")
    return Call(lambda v: v, lambda c: c)


@rule("remainder", "fmod", "__mod__")
def remainder(x: Tensor, divisor: Any) -> Call:
    """x − k·divisor with a whole number k. F is the identity, even if the divisor is a parameter."""
    shape, full = x.shape, torch.broadcast_shapes(x.shape, shape_of(divisor))
    return Call(lambda v: v.expand(full), lambda c: sum_to(c, shape))


@rule("nan_to_num")
def nan_to_num(x: Tensor, *_: Any, **__: Any) -> Call:
    return scaled_by(torch.isfinite(x).to(x.dtype))


@rule("deg2rad")
def radians(x: Tensor) -> Call:
    return Call(lambda v: v * (math.pi / 180), lambda c: c * (math.pi / 180))


@rule("rad2deg")
def degrees(x: Tensor) -> Call:
    return Call(lambda v: v * (180 / math.pi), lambda c: c * (180 / math.pi))


@rule("zero")
def zero(x: Tensor) -> Call:
    return Call(torch.zeros_like, torch.zeros_like)
