"""Sums, differences, products with constants, reductions, and copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..tape import sum_to
from .products import shape_of
from .table import Call, NoRule, rule

Operand = Tensor | float


def _combining(x: Operand, y: Operand, a: float, b: float) -> Call:
    """F and Fᵀ of a·x + b·y."""
    shape_x, shape_y = shape_of(x), shape_of(y)
    shape = shape_x if shape_x == shape_y else torch.broadcast_shapes(shape_x, shape_y)

    def forward(vx: Tensor | None, vy: Tensor | None) -> Tensor:
        terms = [v if c == 1 else c * v for c, v in ((a, vx), (b, vy)) if v is not None]
        return terms[0].expand(shape) if len(terms) == 1 else terms[0] + terms[1]

    def backward(u: Tensor) -> tuple[Tensor, Tensor]:
        return sum_to(u if a == 1 else a * u, shape_x), sum_to(u if b == 1 else b * u, shape_y)

    return Call(forward, backward)


@rule("add", "__add__", "__radd__", data=2, of_complex=True)
def add(x: Operand, y: Operand, *, alpha: float = 1) -> Any:
    return _combining(x, y, 1, alpha)


@rule("sub", "subtract", "__sub__", data=2, of_complex=True)
def subtract(x: Operand, y: Operand, *, alpha: float = 1) -> Any:
    return _combining(x, y, 1, -alpha)


@rule("rsub", "__rsub__", data=2)
def reversed_subtract(x: Operand, y: Operand, *, alpha: float = 1) -> Any:
    return _combining(x, y, -alpha, 1)


@rule("neg", "negative", "__neg__", of_complex=True)
def negate(x: Tensor) -> Any:
    return Call(lambda v: -v, lambda u: -u)


@rule("clone", "contiguous", "positive", "__pos__", of_complex=True)
def copy(x: Tensor, *_: Any, **__: Any) -> Any:
    return Call(lambda v: v, lambda u: u)


def _conversion(function: Any) -> Any:
    """Conversion to another dtype or device. Fᵀ converts back."""

    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        home = {"dtype": x.dtype, "device": x.device}
        return Call(lambda v: function(v, *args, **kwargs), lambda u: u.to(**home))

    return apply


for _name in ("type_as", "to"):
    rule(_name, like=True)(_conversion(getattr(Tensor, _name)))
for _name in ("type", "float", "double", "half", "bfloat16", "cpu", "cuda"):
    rule(_name)(_conversion(getattr(Tensor, _name)))


def _reduction(mean: bool) -> Any:
    def apply(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        shape = x.shape
        axes = axes_of(dim, x.dim())
        count = torch.Size(shape[a] for a in axes).numel() if mean else 1

        def forward(v: Tensor) -> Tensor:
            return (v.mean if mean else v.sum)(axes, keepdim, dtype=dtype)

        def backward(u: Tensor) -> Tensor:
            kept = u if keepdim else insert_axes(u, axes)
            return (kept / count if mean else kept).expand(shape)

        return Call(forward, backward)

    return apply


rule("sum", of_complex=True)(_reduction(mean=False))
rule("mean", of_complex=True)(_reduction(mean=True))


@rule("cumsum")
def cumulative_sum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return Call(lambda v: v.cumsum(dim), lambda u: u.flip(dim).cumsum(dim).flip(dim))


def _extremum(function: Any) -> Any:
    """amax, amin: all places that attain the extremum share the cotangent equally."""

    def apply(x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
        axes = axes_of(dim, x.dim())
        y = function(x, axes, keepdim)
        best = (x == (y if keepdim else insert_axes(y, axes))).to(x.dtype)
        share = best / best.sum(axes, keepdim=True)

        def backward(u: Tensor) -> Tensor:
            return (u if keepdim else insert_axes(u, axes)) * share

        return Call(lambda v: (v * share).sum(axes, keepdim), backward, y=y)

    return apply


rule("amax", runs=True)(_extremum(torch.amax))
rule("amin", runs=True)(_extremum(torch.amin))


def _chosen_along(function: Any) -> Any:
    """max(dim), min(dim), sort, topk, kthvalue, median: y is x at chosen places."""

    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = function(x, *args, **kwargs)
        if isinstance(result, Tensor):
            raise NoRule(f"{function.__name__} over all samples at once")
        dim, keepdim = _dim_of(function.__name__, args, kwargs), True
        index = result[1]
        if index.dim() < x.dim():
            index, keepdim = index.unsqueeze(dim), False
        shape = x.shape

        def forward(v: Tensor) -> Tensor:
            y = v.gather(dim, index)
            return y if keepdim else y.squeeze(dim)

        def backward(u: Tensor) -> Tensor:
            chosen = u if keepdim else u.unsqueeze(dim)
            return u.new_zeros(shape).scatter_add(dim, index, chosen)

        return Call(forward, backward, y=result)

    return apply


for _name in ("max", "min", "sort", "topk", "kthvalue", "median"):
    rule(_name, runs=True)(_chosen_along(getattr(torch, _name)))


@rule("where", data=3, runs=True)
def where(*arguments: Any) -> Any:
    """torch.where(condition, x, y), or x.where(condition, y)."""
    if len(arguments) != 3:
        raise NoRule("where() of a condition alone")
    kinds = [a.dtype if isinstance(a, Tensor) else None for a in arguments]
    mask = torch.bool if torch.bool in kinds else torch.uint8  # old code uses the second
    if mask not in kinds:
        raise NoRule("where() without a condition")
    at = kinds.index(mask)
    condition = arguments[at].bool()
    x, y = (a for i, a in enumerate(arguments) if i != at)
    result = torch.where(condition, x, y)
    shape, shapes = result.shape, (shape_of(x), shape_of(y))
    zero = torch.zeros((), dtype=result.dtype, device=result.device)

    def forward(*tangents: Tensor | None) -> Tensor:
        vx, vy = (zero if v is None else v for i, v in enumerate(tangents) if i != at)
        return torch.where(condition, vx, vy).expand(shape)

    def backward(u: Tensor) -> list[Tensor | None]:
        taken, left = torch.where(condition, u, zero), torch.where(condition, zero, u)
        parts: list[Tensor | None] = [sum_to(taken, shapes[0]), sum_to(left, shapes[1])]
        return [*parts[:at], None, *parts[at:]]

    return Call(forward, backward, y=result)


@rule("masked_fill")
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    shape = x.shape
    return Call(lambda v: v.masked_fill(mask, 0), lambda u: sum_to(u.masked_fill(mask, 0), shape))


@rule("tril")
def lower_triangle(x: Tensor, diagonal: int = 0) -> Any:
    return Call(lambda v: v.tril(diagonal), lambda u: u.tril(diagonal))


@rule("triu")
def upper_triangle(x: Tensor, diagonal: int = 0) -> Any:
    return Call(lambda v: v.triu(diagonal), lambda u: u.triu(diagonal))


def axes_of(dim: Any, dims: int) -> list[int]:
    if dim is None or dim == () or dim == [] or dims == 0:
        return list(range(dims))
    return sorted(d % dims for d in ([dim] if isinstance(dim, int) else dim))


def insert_axes(u: Tensor, axes: list[int]) -> Tensor:
    for axis in axes:
        u = u.unsqueeze(axis)
    return u


def _dim_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    position = {"topk": 1, "kthvalue": 1}.get(name, 0)
    if "dim" in kwargs:
        return int(kwargs["dim"])
    return int(args[position]) if len(args) > position else -1
