"""Products of two factors. Both may depend on the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..tape import sum_to
from .table import Call, NoRule, rule

Product = Callable[[Any, Any], Tensor]


def bilinear(
    followed: Sequence[bool], p: Any, q: Any, product: Product, pull_p: Product, pull_q: Product
) -> Call:
    """y = B(p, q), linear in each. pull_p(c, q) and pull_q(c, p) are its transposes.

    F is B(t_p, q) + B(p, t_q). The gradient of ⟨c, F(t)⟩ in q is pull_q(c, t_p).
    """
    if followed[0] and followed[1]:
        return Call(
            lambda p, q, tp, tq: product(tp, q) + product(p, tq),
            lambda p, q, c: [pull_p(c, q), pull_q(c, p)],
            reads=(p, q),
            terms=lambda p, q, c, tp, tq: [pull_p(c, tq), pull_q(c, tp)],
        )
    if followed[0]:
        if not isinstance(q, Tensor):
            return Call(lambda tp, _: product(tp, q), lambda c: [pull_p(c, q), None])
        return Call(
            lambda q, tp, _: product(tp, q),
            lambda q, c: [pull_p(c, q), None],
            reads=(q,),
            terms=lambda q, c, tp, _: [pull_q(c, tp)],
        )
    if not isinstance(p, Tensor):
        return Call(lambda _, tq: product(p, tq), lambda c: [None, pull_q(c, p)])
    return Call(
        lambda p, _, tq: product(p, tq),
        lambda p, c: [None, pull_q(c, p)],
        reads=(p,),
        terms=lambda p, c, _, tq: [pull_p(c, tq)],
    )


def shape_of(operand: Any) -> torch.Size:
    return operand.shape if isinstance(operand, Tensor) else torch.Size()


def conjugate(factor: Any) -> Any:
    return factor.conj() if isinstance(factor, Tensor) and factor.is_complex() else factor


def check_factors(*factors: Any) -> None:
    """Refuse real factors with complex ones. Fᵀ multiplies with conjugates, but a real factor has a real
    gradient."""
    kinds = {v.is_complex() for v in factors if isinstance(v, Tensor)}
    if len(kinds) > 1 or any(isinstance(v, complex) for v in factors):
        raise NoRule("a product of real and complex numbers")


@rule("mul", "multiply", "__mul__", "__rmul__", data=2, product=True, of_complex=True)
def multiply(followed: Any, x: Any, y: Any) -> Call:
    check_factors(x, y)
    shapes = shape_of(x), shape_of(y)
    return bilinear(
        followed,
        x,
        y,
        torch.mul,
        lambda c, y: sum_to(c * conjugate(y), shapes[0]),
        lambda c, x: sum_to(c * conjugate(x), shapes[1]),
    )


@rule("div", "divide", "true_divide", "__truediv__", "__div__", data=2, product=True)
def divide(followed: Any, x: Any, y: Any, *, rounding_mode: str | None = None) -> Call:
    if rounding_mode is not None:
        raise NoRule("division that rounds")
    shapes = shape_of(x), shape_of(y)
    if not followed[1]:
        if not isinstance(y, Tensor):
            return Call(lambda t, _: t / y, lambda c: [sum_to(c / y, shapes[0]), None])
        return Call(
            lambda y, t, _: t / y,
            lambda y, c: [sum_to(c / y, shapes[0]), None],
            reads=(y,),
            terms=lambda y, c, t, _: [sum_to(-c * t / y.square(), shapes[1])],
        )
    if not isinstance(x, Tensor):
        x = torch.as_tensor(x, dtype=y.dtype, device=y.device)

    def push(x: Tensor, y: Tensor, tx: Tensor | None, ty: Tensor) -> Tensor:
        change = -x / y * ty
        return (change if tx is None else tx + change) / y

    def terms(x: Tensor, y: Tensor, c: Tensor, tx: Tensor | None, ty: Tensor) -> list[Tensor]:
        by_square = c / y.square()
        in_y = 2 * x / y * ty
        return [
            sum_to(-by_square * ty, shapes[0]),
            sum_to(by_square * (in_y if tx is None else in_y - tx), shapes[1]),
        ]

    return Call(
        push,
        lambda x, y, c: [
            sum_to(c / y, shapes[0]) if followed[0] else None,
            sum_to(-c * x / y.square(), shapes[1]),
        ],
        reads=(x, y),
        terms=terms,
    )


@rule("__rdiv__", "__rtruediv__", data=2, product=True)
def divided_into(followed: Any, y: Any, x: Any) -> Call:
    """x / y in the argument order of y.__rtruediv__(x)."""
    call = divide((followed[1], followed[0]), x, y)
    terms = call.terms
    return Call(
        lambda *v: call.push(*v[:-2], v[-1], v[-2]),
        lambda *v: call.pull(*v)[::-1],
        call.reads,
        None if terms is None else lambda *v: terms(*v[:-2], v[-1], v[-2]),
    )


def plus_product(
    followed: Sequence[bool], x: Tensor, inner: Call | None, shape: Sequence[int], beta: Any, alpha: Any
) -> Call:
    """beta·x + alpha·p. `inner` is the rule of p, a product of two, unless p is constant."""
    x_shape = x.shape

    def push(*values: Any) -> Tensor:
        *read, tx, ta, tb = values
        pieces = [] if tx is None else [(beta * tx).expand(shape)]
        if inner is not None:
            pieces.append(alpha * inner.push(*read, ta, tb))
        return (pieces[0] if len(pieces) == 1 else pieces[0] + pieces[1]).expand(shape)

    def pull(*values: Any) -> list[Tensor | None]:
        *read, c = values
        for_x = sum_to(beta * c, x_shape) if followed[0] else None
        return [for_x, *((None, None) if inner is None else inner.pull(*read, alpha * c))]

    if inner is None or inner.terms is None:
        return Call(push, pull, () if inner is None else inner.reads)
    terms = inner.terms
    return Call(push, pull, inner.reads, lambda *v: terms(*v[:-4], alpha * v[-4], *v[-2:]))


@rule("addcmul", data=3, product=True)
def add_product(followed: Any, x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Call:
    """x + value·a·b. Some affine layers are written in this way (ResMLP)."""
    inner = multiply(followed[1:], a, b) if any(followed[1:]) else None
    return plus_product(followed, x, inner, torch.broadcast_shapes(x.shape, a.shape, b.shape), 1, value)
