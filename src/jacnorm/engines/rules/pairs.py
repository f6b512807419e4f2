"""Functions of two arguments, number by number or row by row. Both arguments may depend on the input.

With y = f(a, b), F is f_a t_a + f_b t_b. The gradient of ⟨c, F(t)⟩ in a is c (f_aa t_a + f_ab t_b).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..tape import sum_to
from .smooth import elementwise
from .table import Call, NoRule, rule

Slopes = tuple[Any, Any]  # f_a, f_b
Bends = tuple[Any, Any, Any]  # f_aa, f_ab, f_bb


def pairwise(
    followed: Any, a: Any, b: Any, slopes: Callable[..., Slopes], bends: Callable[..., Bends]
) -> Call:
    """slopes(a, b) and bends(a, b) are the first and second derivatives of f, number by number."""
    known = a if isinstance(a, Tensor) else b
    a, b = (v if isinstance(v, Tensor) else torch.as_tensor(v, device=known.device).to(known) for v in (a, b))
    shapes = a.shape, b.shape
    full = torch.broadcast_shapes(*shapes)

    def combined(first: Any, second: Any, ta: Tensor | None, tb: Tensor | None) -> Any:
        if ta is None or tb is None:
            return first * ta if ta is not None else second * tb
        return first * ta + second * tb

    def push(a: Tensor, b: Tensor, ta: Tensor | None, tb: Tensor | None) -> Tensor:
        return combined(*slopes(a, b), ta, tb).expand(full)

    def pull(a: Tensor, b: Tensor, c: Tensor) -> list[Tensor | None]:
        back = zip(followed, slopes(a, b), shapes, strict=True)
        return [sum_to(c * slope, shape) if wanted else None for wanted, slope, shape in back]

    def terms(a: Tensor, b: Tensor, c: Tensor, ta: Tensor | None, tb: Tensor | None) -> list[Tensor]:
        aa, ab, bb = bends(a, b)
        pieces = combined(aa, ab, ta, tb), combined(ab, bb, ta, tb)
        return [sum_to(c * piece, shape) for piece, shape in zip(pieces, shapes, strict=True)]

    return Call(push, pull, (a, b), terms)


@rule("logaddexp", data=2, product=True)
def log_add(followed: Any, a: Tensor, b: Tensor) -> Call:
    return _log_add(followed, a, b, 1.0)


@rule("logaddexp2", data=2, product=True)
def log2_add(followed: Any, a: Tensor, b: Tensor) -> Call:
    return _log_add(followed, a, b, math.log(2))


def _log_add(followed: Any, a: Tensor, b: Tensor, rate: float) -> Call:
    """The slopes are s and 1 − s with the sigmoid s of rate·(a − b)."""

    def bends(a: Tensor, b: Tensor) -> Bends:
        s = torch.sigmoid(rate * (a - b))
        bend = rate * s * (1 - s)
        return bend, -bend, bend

    def slopes(a: Tensor, b: Tensor) -> Slopes:
        return torch.sigmoid(rate * (a - b)), torch.sigmoid(rate * (b - a))

    return pairwise(followed, a, b, slopes, bends)


@rule("atan2", "arctan2", data=2, product=True)
def angle(followed: Any, y: Tensor, x: Tensor) -> Call:
    def slopes(y: Tensor, x: Tensor) -> Slopes:
        square = y.square() + x.square()
        return x / square, -y / square

    def bends(y: Tensor, x: Tensor) -> Bends:
        along, across = slopes(y, x)
        return 2 * along * across, across.square() - along.square(), -2 * along * across

    return pairwise(followed, y, x, slopes, bends)


@rule("hypot", data=2, product=True)
def hypotenuse(followed: Any, a: Tensor, b: Tensor) -> Call:
    def slopes(a: Tensor, b: Tensor) -> Slopes:
        y = torch.hypot(a, b)
        return a / y, b / y

    def bends(a: Tensor, b: Tensor) -> Bends:
        y = torch.hypot(a, b)
        p, q = a / y, b / y
        return q.square() / y, -p * q / y, p.square() / y

    return pairwise(followed, a, b, slopes, bends)


@rule("xlogy", "special_xlogy", data=2, product=True)
def x_log_y(followed: Any, x: Any, y: Any) -> Call:
    """x log y. At x = 0 the value is zero, and so is the slope."""
    return pairwise(
        followed,
        x,
        y,
        lambda x, y: (torch.xlogy((x != 0).to(y.dtype), y), x / y),
        lambda x, y: (torch.zeros_like(x), 1 / y, -x / y.square()),
    )


@rule("power of a tensor", data=2, product=True)
def power(followed: Any, a: Any, b: Any) -> Call:
    """a^b. As in autograd, the slope in a is zero if b = 0, and the slope in b is zero if a = 0 and b ≥ 0."""

    def falling(a: Tensor, b: Tensor) -> Tensor:
        """The slope in a."""
        return torch.where(b == 0, 0, b * a ** (b - 1))

    def rising(a: Tensor, b: Tensor) -> Tensor:
        """The slope in b."""
        return torch.where((a == 0) & (b >= 0), 0, a**b * a.log())

    def bends(a: Tensor, b: Tensor) -> Bends:
        in_both = torch.where(b == 0, 0, a ** (b - 1)) + b * rising(a, b - 1)
        return b * falling(a, b - 1), in_both, rising(a, b) * a.log()

    return pairwise(followed, a, b, lambda a, b: (falling(a, b), rising(a, b)), bends)


@rule("__rpow__", runs=True)
def power_of_constant(x: Tensor, base: Any) -> Call:
    """base^x."""
    if isinstance(base, Tensor) and (base.dim() > 0 or base.requires_grad):
        raise NoRule("a power whose base is a tensor")
    y, rate = torch.pow(base, x), math.log(base)
    return elementwise(y, lambda y: y * rate, lambda y: torch.full_like(y, rate), y=y)


@rule("lerp", composed=True)
def interpolation(a: Tensor, b: Tensor, weight: Any) -> Tensor:
    return a + weight * (b - a)


@rule("cosine_similarity", composed=True)
def cosine(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    return (_direction(x1, dim, eps) * _direction(x2, dim, eps)).sum(dim)


def _direction(x: Tensor, dim: int, eps: float) -> Tensor:
    """x/max(‖x‖, ε). The slope of the divisor is that of ‖x‖ everywhere, as PyTorch has it."""
    size = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return x / (size + (size.clamp_min(eps) - size).detach())


@rule("pairwise_distance", composed=True)
def distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)


@rule("cdist", data=2, product=True, runs=True)
def distances(followed: Any, x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Call:
    """y_ij = ‖a_i − b_j‖. F: ⟨a_i − b_j, t_i − s_j⟩/y_ij with the tangents t of a and s of b."""
    if p != 2:
        raise NoRule(f"distances of order {p}")
    shapes = x1.shape, x2.shape
    y = torch.cdist(x1, x2, p, compute_mode or "use_mm_for_euclid_dist_if_necessary")

    def over(c: Tensor, y: Tensor) -> Tensor:
        return torch.where(y == 0, 0, c / y)

    def push(a: Tensor, b: Tensor, y: Tensor, t: Tensor | None, s: Tensor | None) -> Tensor:
        pieces = [(a * t).sum(-1, keepdim=True) - t @ b.mT] if t is not None else []
        pieces += [(b * s).sum(-1).unsqueeze(-2) - a @ s.mT] if s is not None else []
        return over(sum(pieces[1:], pieces[0]), y)

    def towards(w: Tensor, a: Tensor | None, b: Tensor | None) -> list[Tensor]:
        """Σ_j w_ij (a_i − b_j) and Σ_i w_ij (b_j − a_i)."""
        both = [w.new_zeros(()), w.new_zeros(())]
        if a is not None:
            both = [a * w.sum(-1, keepdim=True), -w.mT @ a]
        if b is not None:
            both = [both[0] - w @ b, both[1] + b * w.sum(-2).unsqueeze(-1)]
        return [sum_to(v, shape) for v, shape in zip(both, shapes, strict=True)]

    return Call(
        push,
        lambda a, b, y, c: towards(over(c, y), a, b),
        (x1, x2, y),
        lambda a, b, y, c, t, s: [*towards(over(c, y), t, s), -over(c, y) * push(a, b, y, t, s)],
        y=y,
    )


@rule("glu")
def gated(x: Tensor, dim: int = -1) -> Call:
    """With x = (a, b): y = a σ(b)."""

    def push(x: Tensor, t: Tensor) -> Tensor:
        (a, b), (ta, tb) = x.chunk(2, dim), t.chunk(2, dim)
        s = torch.sigmoid(b)
        return s * (ta + a * (1 - s) * tb)

    def terms(x: Tensor, c: Tensor, t: Tensor) -> list[Tensor]:
        (a, b), (ta, tb) = x.chunk(2, dim), t.chunk(2, dim)
        s = torch.sigmoid(b)
        slope = c * s * (1 - s)
        return [torch.cat([slope * tb, slope * (ta + a * (1 - 2 * s) * tb)], dim)]

    return Call(push, lambda x, c: torch.ops.aten.glu_backward(c, x, dim), (x,), terms)
