"""Sums, products and norms along an axis: cumprod, prod, logcumsumexp, diff, linalg.norm.

Products: set the zeros among the x to one, let P be the product and Z the number of zeros in it. Without
zeros the derivative is P Σ t/x. With one zero it is P t there. With two it is zero, and only the second
derivative is left. So F(t) = [Z=0] P Σ t/x + [Z=1] P Σ t [x=0], which is exact at zeros too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .arithmetic import _chosen_along
from .norms import vector_norm
from .table import Call, NoRule, rule

for _name in ("cummax", "cummin"):
    rule(_name, runs=True)(_chosen_along(getattr(torch, _name)))


class _Products:
    """Products of all numbers along an axis, or, if `cumulative`, of the numbers up to each place."""

    def __init__(self, dim: int, cumulative: bool):
        self.dim, self.cumulative = dim, cumulative

    def along(self, v: Tensor) -> Tensor:
        return v.cumsum(self.dim) if self.cumulative else v.sum(self.dim, keepdim=True)

    def back(self, c: Tensor) -> Tensor:
        """The transpose of `along`, up to broadcasting."""
        return _from_behind(c, self.dim) if self.cumulative else c

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """[x=0], 1/x, and P where Z is 0, 1 and 2."""
        zero = x == 0
        count, filled = self.along(zero.to(x.dtype)), x.masked_fill(zero, 1)
        whole = filled.cumprod(self.dim) if self.cumulative else filled.prod(self.dim, keepdim=True)
        return (
            zero.to(x.dtype),
            filled.reciprocal().masked_fill(zero, 0),
            [whole * (count == k) for k in range(3)],
        )

    def push(self, x: Tensor, t: Tensor) -> Tensor:
        zero, inverse, (p0, p1, _) = self.parts(x)
        return p0 * self.along(t * inverse) + p1 * self.along(t * zero)

    def pull(self, x: Tensor, c: Tensor) -> Tensor:
        zero, inverse, (p0, p1, _) = self.parts(x)
        return inverse * self.back(c * p0) + zero * self.back(c * p1)

    def term(self, x: Tensor, c: Tensor, t: Tensor) -> Tensor:
        """A second zero, or a second 1/x, at each place but the one of t."""
        zero, inverse, (p0, p1, p2) = (*self.parts(x)[:2], [c * p for p in self.parts(x)[2]])
        near, far = self.along(t * inverse), self.along(t * zero)
        regular = self.back(p0 * near + p1 * far) - t * inverse * self.back(p0)
        at_zero = self.back(p1 * near + p2 * far) - t * self.back(p2)
        return inverse * regular + zero * at_zero


@rule("cumprod")
def cumulative_product(x: Tensor, dim: int, *, dtype: Any = None) -> Call:
    products = _Products(dim, cumulative=True)
    return Call(products.push, products.pull, (x,), lambda x, c, t: [products.term(x, c, t)])


@rule("prod")
def product(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Call:
    shape, axis = x.shape, 0 if dim is None else dim
    products = _Products(axis, cumulative=False)

    def whole(v: Tensor) -> Tensor:
        return v.reshape(-1) if dim is None else v.reshape(shape)

    def told(c: Tensor) -> Tensor:
        return c if keepdim else c.unsqueeze(axis)

    def push(x: Tensor, t: Tensor) -> Tensor:
        y = products.push(whole(x), whole(t))
        return y if keepdim else y.squeeze(axis)

    return Call(
        push,
        lambda x, c: products.pull(whole(x), told(c)).view(shape),
        (x,),
        lambda x, c, t: [products.term(whole(x), told(c), whole(t)).view(shape)],
    )


@rule("logcumsumexp", runs=True)
def log_of_sums(x: Tensor, dim: int) -> Call:
    """y_k = log Σ exp x_j over j ≤ k. F: Σ t_j exp(x_j − y_k), the positive and the negative t by themselves.

    (Autograd's backward is written so that differentiating it again gives no J v.)
    """
    y = torch.logcumsumexp(x, dim)

    def split(v: Tensor) -> tuple[Tensor, Tensor]:
        return v.clamp_min(0).log(), (-v).clamp_min(0).log()

    def push(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        more, less = (torch.exp(torch.logcumsumexp(x + part, dim) - y) for part in split(t))
        return more - less

    def pull(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
        more, less = (torch.exp(x + (part - y).flip(dim).logcumsumexp(dim).flip(dim)) for part in split(c))
        return more - less

    return Call(push, pull, (x, y), lambda x, y, c, t: [t * pull(x, y, c), -c * push(x, y, t)], y=y)


@rule("diff")
def differences(x: Tensor, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Call:
    """y_k = x_{k+1} − x_k, n times over."""
    if prepend is not None or append is not None:
        raise NoRule("diff with something before or after")

    def pull(c: Tensor) -> Tensor:
        edge = torch.zeros_like(c.narrow(dim, 0, 1))
        for _ in range(n):
            c = -torch.cat([edge, c, edge], dim).diff(dim=dim)
        return c

    return Call(lambda v: v.diff(n, dim), pull)


def _from_behind(c: Tensor, dim: int) -> Tensor:
    """Σ of c from each place to the end."""
    return c.flip(dim).cumsum(dim).flip(dim)


@rule("linalg_norm", runs=True)
def norm(x: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Call:
    """Euclidean norms only. For a matrix this is the Frobenius norm."""
    axes = x.dim() if dim is None else 1 if isinstance(dim, int) else len(dim)
    if ord is None or (ord == 2 and axes == 1) or (ord == "fro" and axes == 2):
        return vector_norm(x, 2, dim, keepdim, dtype=dtype)
    raise NoRule(f"a norm of order {ord}")


@rule("linalg_matrix_norm", runs=True)
def matrix_norm(
    x: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Call:
    return norm(x, ord, dim, keepdim, dtype=dtype)
