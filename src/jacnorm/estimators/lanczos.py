"""Golub–Kahan–Lanczos bidiagonalization: far fewer products than power iteration for the same digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import check_count, check_positive
from .estimate import Estimate, from_left
from .operator import (
    Operator,
    Transposed,
    as_operator,
    column,
    divided,
    flat,
    is_wide,
    norms,
    size,
    start,
)


@torch.no_grad()
def lanczos(J: Operator | Tensor, *, tol: float = 1e-3, max_iterations: int = 100) -> Estimate:
    """Largest singular triple from a growing Krylov space, for each sample until it converges.

    Golub & Kahan (1965), with the basis of the smaller side reorthogonalized in full, which keeps the
    other one orthogonal too (Simon & Zha, 2000).

    >>> lanczos(torch.diag(torch.tensor([3.0, 1.0])), tol=1e-5).sigma
    tensor([3.0000])
    """
    J = as_operator(J)
    if not is_wide(J):
        return lanczos(Transposed(J), tol=tol, max_iterations=max_iterations).transposed()
    ritz = ritz_values(J, 1, tol, max_iterations)
    u = divided(ritz.u, norms(ritz.u)).view(J.output_shape)
    return from_left(J, u, tol, ritz.iterations)


@dataclass
class Ritz:
    """The k largest Ritz values (B, k), their estimated residuals, and the first left vector."""

    values: Tensor
    residuals: Tensor
    u: Tensor
    iterations: int


def ritz_values(J: Operator, k: int, tol: float, max_iterations: int) -> Ritz:
    """Grow the space until the k largest have converged, at most to the size of the smaller side."""
    check_positive("tol", tol)
    check_count("max_iterations", max_iterations)
    space = _Krylov(J)
    limit = min(max_iterations, size(J.output_shape))
    best: Ritz | None = None
    for i in range(1, limit + 1):
        space.grow()
        if i >= k:
            best = _merge(best, space.ritz(k, i), tol)
            if _converged(best, tol).all():
                break
    assert best is not None
    return best


class _Krylov:
    """U (B, m, i+1) orthonormal and B (B, i+1, i) lower bidiagonal, with J V = U B."""

    def __init__(self, J: Operator):
        self.J = J
        self.tiny = 10 * torch.finfo(J.dtype).eps
        u = start(J.output_shape, J)
        self.U = [flat(u)]
        w = J.vjp(u)
        self.alphas, self.betas = [norms(w)], list[Tensor]()
        self.v = divided(w, self.alphas[0])
        self.scale = self.alphas[0]

    def grow(self) -> None:
        J, U = self.J, self.U
        u = flat(J.jvp(self.v)) - self.alphas[-1][:, None] * U[-1]
        basis = torch.stack(U, 2)
        for _ in range(2):  # twice is enough (Kahan)
            u = u - (basis @ (basis.mT @ u[..., None]))[..., 0]
        beta = self._negligible_to_zero(norms(u))
        u = torch.where(beta[:, None] > 0, divided(u, beta), torch.zeros_like(u))
        w = J.vjp(u.view(J.output_shape)) - column(beta, self.v) * self.v
        alpha = self._negligible_to_zero(norms(w))
        zero = torch.zeros_like(w)
        self.v = torch.where(column(alpha, w) > 0, divided(w, alpha), zero)
        U.append(u)
        self.betas.append(beta)
        self.alphas.append(alpha)

    def _negligible_to_zero(self, length: Tensor) -> Tensor:
        """Below rounding the space is complete; going on would amplify noise."""
        self.scale = torch.maximum(self.scale, length)
        return torch.where(length > self.tiny * self.scale, length, torch.zeros_like(length))

    def ritz(self, k: int, i: int) -> Ritz:
        diagonal = torch.stack(self.alphas[:i], 1)
        B = torch.zeros(len(diagonal), i + 1, i, dtype=diagonal.dtype, device=diagonal.device)
        B[:, range(i), range(i)] = diagonal
        B[:, range(1, i + 1), range(i)] = torch.stack(self.betas, 1)
        P, values, _ = torch.linalg.svd(B, full_matrices=False)
        residuals = self.alphas[i][:, None] * P[:, -1, :k].abs()
        u = (torch.stack(self.U, 2) @ P[:, :, :1])[..., 0]
        return Ritz(values[:, :k], residuals, u, i)


def _converged(ritz: Ritz, tol: float) -> Tensor:
    return (ritz.residuals <= tol * ritz.values[:, :1]).all(1)


def _merge(old: Ritz | None, new: Ritz, tol: float) -> Ritz:
    """A sample that has converged stays as it is, whatever the others still need."""
    if old is None:
        return new
    done = _converged(old, tol)[:, None]
    return Ritz(
        torch.where(done, old.values, new.values),
        torch.where(done, old.residuals, new.residuals),
        torch.where(done, old.u, new.u),
        new.iterations,
    )
