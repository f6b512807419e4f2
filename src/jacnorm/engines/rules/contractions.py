"""Products of two or three tensors that sum over common axes, other than matmul and einsum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..tape import sum_to
from .affine import einsum
from .products import bilinear, divide, multiply, plus_product
from .table import Call, NoRule, rule

LETTERS = "abcdefghijklmnopqrstuvwxyz"


@rule("outer", "ger", data=2, product=True)
def outer(followed: Any, a: Tensor, b: Tensor) -> Call:
    return bilinear(followed, a, b, torch.outer, lambda c, b: c @ b, lambda c, a: a @ c)


@rule("dot", "vdot", "inner", data=2, product=True)
def inner(followed: Any, a: Tensor, b: Tensor) -> Call:
    """Over the last axis of each."""
    if a.dim() == 0 or b.dim() == 0:
        return multiply(followed, a, b)
    rows, columns = LETTERS[: a.dim() - 1], LETTERS[a.dim() - 1 : a.dim() + b.dim() - 2]
    if not rows + columns:
        return bilinear(followed, a, b, torch.dot, lambda c, b: c * b, lambda c, a: c * a)
    return einsum(followed, f"{rows}z,{columns}z->{rows}{columns}", a, b)


@rule("linalg_vecdot", data=2, product=True)
def rows_with_rows(followed: Any, x: Tensor, y: Tensor, *, dim: int = -1) -> Call:
    shapes = x.shape, y.shape

    def times(c: Tensor, factor: Tensor) -> Tensor:
        return c.unsqueeze(dim) * factor

    return bilinear(
        followed,
        x,
        y,
        lambda x, y: (x * y).sum(dim),
        lambda c, y: sum_to(times(c, y), shapes[0]),
        lambda c, x: sum_to(times(c, x), shapes[1]),
    )


@rule("tensordot", data=2, product=True)
def tensordot(followed: Any, a: Tensor, b: Tensor, dims: Any = 2, out: None = None) -> Call:
    over_a, over_b = _both(dims, a.dim())
    if any(a.shape[i] != b.shape[j] for i, j in zip(over_a, over_b, strict=True)):
        raise NoRule("tensordot that broadcasts")
    in_a, in_b = list(LETTERS[: a.dim()]), list(LETTERS[a.dim() : a.dim() + b.dim()])
    for i, j in zip(over_a, over_b, strict=True):
        in_b[j] = in_a[i]
    common = {in_a[i] for i in over_a}
    result = [letter for letter in (*in_a, *in_b) if letter not in common]
    return einsum(followed, f"{''.join(in_a)},{''.join(in_b)}->{''.join(result)}", a, b)


def _both(dims: Any, axes: int) -> Any:
    if isinstance(dims, int):
        return list(range(axes - dims, axes)), list(range(dims))
    if isinstance(dims, Tensor):
        raise NoRule("tensordot with axes in a tensor")
    return dims


@rule("bilinear", data=3, product=True)
def bilinear_layer(
    followed: Any, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Call:
    """y_o = xᵀ W_o z. (The bias has no part in F.)"""
    rows = LETTERS[: input1.dim() - 1]
    return einsum(followed, f"{rows}x,{rows}z,oxz->{rows}o", input1, input2, weight)


@rule("cross", data=2, product=True)
def cross(followed: Any, a: Tensor, b: Tensor, dim: int | None = None) -> Call:
    """Without `dim`, over the first axis of length three."""
    lengths = list(torch.broadcast_shapes(a.shape, b.shape))
    return cross_product(followed, a, b, dim=lengths.index(3) - len(lengths) if dim is None else dim)


@rule("linalg_cross", data=2, product=True)
def cross_product(followed: Any, a: Tensor, b: Tensor, *, dim: int = -1) -> Call:
    """a × b. The transposes of such a product are such products again."""
    shapes = a.shape, b.shape

    def times(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.cross(a, b, dim=dim)

    return bilinear(
        followed,
        a,
        b,
        times,
        lambda c, b: sum_to(times(b, c), shapes[0]),
        lambda c, a: sum_to(times(c, a), shapes[1]),
    )


@rule("kron", data=2, product=True)
def kronecker(followed: Any, a: Tensor, b: Tensor) -> Call:
    if a.dim() != b.dim():
        raise NoRule("a Kronecker product of tensors with different numbers of axes")
    shapes, axes = (a.shape, b.shape), range(a.dim())
    sizes = [n for pair in zip(*shapes, strict=True) for n in pair]

    def apart(c: Tensor) -> Tensor:
        """The axes of a, then those of b."""
        return c.reshape(sizes).permute([2 * i for i in axes] + [2 * i + 1 for i in axes])

    return bilinear(
        followed,
        a,
        b,
        torch.kron,
        lambda c, b: torch.tensordot(apart(c), b, b.dim()),
        lambda c, a: torch.tensordot(a, apart(c), a.dim()),
    )


@rule("addcdiv", data=3, product=True)
def add_quotient(followed: Any, x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Call:
    inner = divide(followed[1:], a, b) if any(followed[1:]) else None
    return plus_product(followed, x, inner, torch.broadcast_shapes(x.shape, a.shape, b.shape), 1, value)


def _added(equation: str) -> Any:
    def apply(followed: Any, x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Call:
        inner = einsum(followed[1:], equation, a, b) if any(followed[1:]) else None
        terms, _, result = equation.partition("->")
        sizes = dict(zip(terms.replace(",", ""), (*a.shape, *b.shape), strict=True))
        return plus_product(followed, x, inner, [sizes[i] for i in result], beta, alpha)

    return apply


rule("addmv", data=3, product=True)(_added("ab,b->a"))
rule("addr", data=3, product=True)(_added("a,b->ab"))
rule("addbmm", data=3, product=True)(_added("zab,zbc->ac"))
