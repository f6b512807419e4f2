"""Putting the numbers of one tensor into another: scattering, index_add and the like.

All these calls are linear. Fᵀ uses the same index or mask in the other direction. If two numbers go to the
same place, PyTorch does not specify which of them stays. Autograd counts both, and so does F.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..tape import sum_to
from .products import shape_of
from .table import Call, NoRule, rule

Map = Callable[[Tensor], Tensor]


def _putting(source: Any, keep: Map, place: Map, take: Map, between: int = 0) -> Call:
    """y = keep(x) + place(source). keep is its own transpose, and take is the transpose of place.

    `between` is the number of constant arguments between x and the source.
    """

    def push(t: Tensor | None, *rest: Tensor | None) -> Tensor:
        s = rest[-1]
        if t is None:
            assert s is not None
            return place(s)
        return keep(t) if s is None else keep(t) + place(s)

    def pull(c: Tensor) -> list[Tensor | None]:
        return [keep(c), *[None] * between, take(c) if isinstance(source, Tensor) else None]

    return Call(push, pull)


def _corner(c: Tensor, shape: torch.Size) -> Tensor:
    """c as the first numbers along each axis: an index need not reach all of its source."""
    if c.shape == shape:
        return c
    whole = c.new_zeros(shape)
    whole[tuple(slice(n) for n in c.shape)] = c
    return whole


def _scattering(x: Tensor, dim: int, index: Tensor, src: Any, keep: Map, factor: Any = 1) -> Call:
    """keep(x), plus the source times the factor at the places of the index."""
    shape, source_shape = x.shape, shape_of(src)
    return _putting(
        src,
        keep,
        lambda s: s.new_zeros(shape).scatter_add(dim, index, s * factor),
        lambda c: _corner(c.gather(dim, index), source_shape) * factor,
        between=2,
    )


@rule("scatter", data=4)
def scatter(
    x: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: str | None = None
) -> Call:
    if reduce is not None:
        raise NoRule("scatter with reduce=")
    return _scattering(x, dim, index, src, lambda v: v.scatter(dim, index, 0))


@rule("scatter_add", data=4)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Call:
    return _scattering(x, dim, index, src, lambda v: v)


@rule("scatter_reduce", data=4)
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Call:
    """Sums and means add; the extrema are shared equally by all that attain them."""
    used = tuple(slice(n) for n in index.shape)
    if reduce in ("sum", "mean"):
        mine, others = torch.ones_like(x), torch.ones_like(src)
    elif reduce in ("amax", "amin"):
        y = x.scatter_reduce(dim, index, src, reduce, include_self=include_self)
        mine, others = (x == y).to(x.dtype), torch.zeros_like(src)
        others[used] = (src[used] == y.gather(dim, index)).to(x.dtype)
    else:
        raise NoRule(f"scatter_reduce with {reduce}")
    if not include_self:
        mine = mine.scatter(dim, index, 0)
    if reduce != "sum":
        count = mine.scatter_add(dim, index, others).clamp_min(1)
        mine, others = mine / count, others.clone()
        others[used] = others[used] / count.gather(dim, index)
    return _scattering(x, dim, index, src, lambda v: v * mine, others)


@rule("index_add", data=4)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Call:
    shape = x.shape
    return _putting(
        source,
        lambda v: v,
        lambda s: s.new_zeros(shape).index_add(dim, index, s, alpha=alpha),
        lambda c: c.index_select(dim, index) * alpha,
        between=2,
    )


@rule("index_copy", data=4)
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Call:
    shape = x.shape
    return _putting(
        source,
        lambda v: v.index_fill(dim, index, 0),
        lambda s: s.new_zeros(shape).index_add(dim, index, s),
        lambda c: c.index_select(dim, index),
        between=2,
    )


@rule("index_fill", data=4)
def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Call:
    shape = x.shape
    return _putting(
        value,
        lambda v: v.index_fill(dim, index, 0),
        lambda s: s.new_zeros(shape).index_fill(dim, index, s),
        lambda c: c.index_select(dim, index).sum(),
        between=2,
    )


@rule("index_put", data=3)
def index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Call:
    shape, values_shape = x.shape, values.shape
    where = tuple(indices)
    nothing = torch.zeros((), dtype=x.dtype, device=x.device)
    return _putting(
        values,
        lambda v: v if accumulate else v.index_put(where, nothing),
        lambda s: s.new_zeros(shape).index_put(where, s, True),
        lambda c: sum_to(c[where], values_shape),
        between=1,
    )


@rule("put", data=3)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Call:
    shape, source_shape = x.shape, source.shape
    return _putting(
        source,
        lambda v: v if accumulate else v.put(index, v.new_zeros(source_shape)),
        lambda s: s.new_zeros(shape).put(index, s, True),
        lambda c: c.take(index).view(source_shape),
        between=1,
    )


@rule("masked_scatter", data=3)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Call:
    shape, source_shape = x.shape, source.shape
    if torch.broadcast_shapes(shape, mask.shape) != shape:
        raise NoRule("a mask larger than the tensor")

    def take(c: Tensor) -> Tensor:
        taken = c.masked_select(mask)
        return _corner(taken, torch.Size([source_shape.numel()])).view(source_shape)

    return _putting(
        source,
        lambda v: v.masked_fill(mask, 0),
        lambda s: s.new_zeros(shape).masked_scatter(mask, s),
        take,
        between=1,
    )


def _replacing(view: Callable[..., Tensor]) -> Any:
    """x with a view of it replaced by the source."""

    def apply(x: Tensor, src: Tensor, *args: Any, **kwargs: Any) -> Call:
        shape = x.shape

        def part(v: Tensor) -> Tensor:
            return view(v, *args, **kwargs)

        def keep(v: Tensor) -> Tensor:
            kept = v.clone()
            part(kept).zero_()
            return kept

        def place(s: Tensor) -> Tensor:
            whole = s.new_zeros(shape)
            part(whole).copy_(s)
            return whole

        return _putting(src, keep, place, part)

    return apply


rule("select_scatter", data=2)(_replacing(Tensor.select))
rule("diagonal_scatter", data=2)(_replacing(Tensor.diagonal))


def _slice(v: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    return v.movedim(dim, 0)[start:end:step].movedim(0, dim)


rule("slice_scatter", data=2)(_replacing(_slice))


@rule("written through a view", data=2)
def base_of_a_view(base: Tensor, view: Tensor) -> Call:
    """The base after its view was changed in place."""

    def part(v: Tensor) -> Tensor:
        return v.as_strided(*where)

    where = view.shape, view.stride(), view.storage_offset() - base.storage_offset()
    return _replacing(lambda v: part(v.contiguous()))(base, view)


@rule("fill", data=2)
def fill(x: Tensor, value: Any) -> Call:
    shape = x.shape
    return _putting(value, torch.zeros_like, lambda s: s.expand(shape), lambda c: c.sum())
