"""Golub–Kahan–Lanczos bidiagonalization. It needs far fewer products than power iteration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import warn
from ..pytorch.precision import in_full_precision
from ..trust.checks import check_count, check_positive
from .estimate import Estimate, from_left
from .operator import (
    Operator,
    Transposed,
    agreement,
    all_done,
    as_operator,
    column,
    decomposable,
    divided,
    flat,
    is_wide,
    norms,
    size,
    start,
)

MIN_ROUNDS = 4


@in_full_precision
@torch.no_grad()
def lanczos(J: Operator | Tensor, *, tol: float = 1e-3, max_iterations: int = 100) -> Estimate:
    """The largest singular triple of each sample, from a Krylov space that grows until all have converged.

    J is an operator, or a matrix (m, n) or (B, m, n). `tol` is the relative tolerance, and `max_iterations`
    the largest dimension of the space. Returns an `Estimate`.

    The method is that of Golub & Kahan (1965). The basis of the smaller side is reorthogonalized in full.
    That keeps the other basis orthogonal as well (Simon & Zha, 2000).

    >>> lanczos(torch.diag(torch.tensor([3.0, 1.0])), tol=1e-5).sigma.round(decimals=4)
    tensor([3.])
    """
    check_positive("tol", tol)
    check_count("max_iterations", max_iterations)
    J = as_operator(J)
    if not is_wide(J):
        return lanczos(Transposed(J), tol=tol, max_iterations=max_iterations).transposed()
    ritz = _iterate(J, start(J.output_shape, J), tol, max_iterations)
    return from_left(J, divided(ritz.u, norms(ritz.u)).view(J.output_shape), tol, ritz.iterations)


@in_full_precision
def deflated(J: Operator, k: int, tol: float, max_iterations: int) -> tuple[Tensor, Tensor]:
    """The k largest singular values, (B, k), and their left vectors, (B, k, *output), found one at a time.

    Each one is projected out before the next is sought. A single Krylov space would not be enough: it holds
    only one vector per distinct singular value, and so misses repeated values.
    """
    found: list[Tensor] = []
    values = []
    for i in range(k):
        rest = _Deflated(J, found)
        ritz = _iterate(rest, rest.project(start(J.output_shape, J, seed=i)), tol, max_iterations)
        if not ritz.converged(tol * 2).all():
            warn(
                f"singular value number {i + 1} has not converged to {tol:g} in {ritz.iterations} rounds; "
                "try a larger max_iterations or tol"
            )
        u = rest.project(ritz.u.view(J.output_shape))
        found.append(divided(u, norms(u)))
        values.append(norms(J.vjp(found[-1])))
    sorted_values, by_size = torch.stack(values, 1).sort(descending=True)
    U = torch.stack(found, 1)
    return sorted_values, U.gather(1, by_size.view(*by_size.shape, *[1] * (U.dim() - 2)).expand_as(U))


class _Deflated:
    """(I − U Uᵀ) J for the left vectors U found so far."""

    def __init__(self, J: Operator, found: list[Tensor]):
        self.J, self.found = J, found
        self.input_shape, self.output_shape = J.input_shape, J.output_shape
        self.dtype, self.device, self.agreed = J.dtype, J.device, agreement(J)

    def project(self, u: Tensor) -> Tensor:
        for known in self.found:
            u = u - column((flat(known) * flat(u)).sum(1), u) * known
        return u

    def jvp(self, v: Tensor) -> Tensor:
        return self.project(self.J.jvp(v))

    def vjp(self, u: Tensor) -> Tensor:
        return self.J.vjp(self.project(u))


@dataclass
class _Ritz:
    """The largest Ritz value of each sample, its estimated residual, and its left vector."""

    value: Tensor
    residual: Tensor
    u: Tensor
    iterations: int

    def converged(self, tol: float) -> Tensor:
        return self.residual <= tol / 2 * self.value  # half of tol, since rounding adds to the true residual


def _iterate(J: Operator, u: Tensor, tol: float, max_iterations: int) -> _Ritz:
    """Grow the space until every sample has converged, or until it has the size of the smaller side."""
    space = _Krylov(J, u)
    best = space.ritz()
    for i in range(2, min(max_iterations, size(J.output_shape)) + 1):
        # A start far from the top vector can seem to converge to another one for a round or two.
        if i > MIN_ROUNDS and all_done(J, best.converged(tol)):
            break
        new = space.ritz()
        best = new if i <= MIN_ROUNDS else _keep_converged(best, new, tol)
    return best


def _keep_converged(old: _Ritz, new: _Ritz, tol: float) -> _Ritz:
    """The new values, except for samples that had already converged: these do not change any more."""
    done = old.converged(tol)
    return _Ritz(
        torch.where(done, old.value, new.value),
        torch.where(done, old.residual, new.residual),
        torch.where(done[:, None], old.u, new.u),
        new.iterations,
    )


class _Krylov:
    """U (B, m, i+1) orthonormal and B (B, i+1, i) lower bidiagonal, with J V = U B."""

    def __init__(self, J: Operator, u: Tensor):
        self.J = J
        self.U = [flat(divided(u, norms(u)))]
        w = J.vjp(self.U[0].view(J.output_shape))
        self.alphas, self.betas = [norms(w)], list[Tensor]()
        self.v = divided(w, self.alphas[0])
        self.scale = self.alphas[0]

    def ritz(self) -> _Ritz:
        """Grow by one vector on each side, and return the largest singular triple of B."""
        self._grow()
        i = len(self.betas)
        B = torch.diag_embed(torch.stack(self.alphas[:i], 1))
        B = torch.cat([B, torch.zeros_like(B[:, :1])], 1)
        B[:, range(1, i + 1), range(i)] = torch.stack(self.betas, 1)
        P, values, _ = torch.linalg.svd(decomposable(B), full_matrices=False)
        u = (torch.stack(self.U, 2) @ P[:, :, :1])[..., 0]
        return _Ritz(values[:, 0], self.alphas[i] * P[:, -1, 0].abs(), u, i)

    def _grow(self) -> None:
        J, U = self.J, self.U
        u = flat(J.jvp(self.v)) - self.alphas[-1][:, None] * U[-1]
        basis = torch.stack(U, 2)
        for _ in range(2):  # two rounds are enough (Kahan)
            u = u - (basis @ (basis.mT @ u[..., None]))[..., 0]
        u, beta = self._normalized(u)
        w = J.vjp(u.view(J.output_shape)) - column(beta, self.v) * self.v
        self.v, alpha = self._normalized(w)
        U.append(u)
        self.betas.append(beta)
        self.alphas.append(alpha)

    def _normalized(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """w/‖w‖ and ‖w‖. If w is only rounding, the space is complete, and both are zero."""
        length = norms(w)
        self.scale = torch.maximum(self.scale, length)
        length = torch.where(length <= 10 * torch.finfo(w.dtype).eps * self.scale, 0, length)  # NaN stays
        return torch.where(column(length, w) > 0, divided(w, length), 0), length
