"""Power iteration on JᵀJ: Algorithm 1 of the paper, read as it is meant (see docs/errata.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from ..pytorch.precision import in_full_precision
from ..trust.checks import check_count, check_positive
from .estimate import Estimate, reached
from .operator import Operator, all_done, as_operator, column, divided, normalized, norms, start


@in_full_precision
@torch.no_grad()
def power_iteration(
    J: Operator | Tensor, *, v: Tensor | None = None, tol: float = 1e-3, max_iterations: int = 100
) -> Estimate:
    """The largest singular value of each sample, by the iteration u ← J v / ‖J v‖, v ← Jᵀu / ‖Jᵀu‖.

    J is an operator, or a matrix (m, n) or (B, m, n). `v` (B, *input) is the start, random by default. `tol`
    is the relative tolerance, and `max_iterations` the largest number of rounds. Returns an `Estimate`.

    Each round multiplies the error by about (σ₂/σ₁)². This is fast from a good start, and slow if the two
    largest singular values are close.

    >>> A = torch.diag(torch.tensor([3.0, 1.0]))
    >>> power_iteration(A, tol=1e-4).sigma.round(decimals=4)
    tensor([3.])
    """
    check_positive("tol", tol)
    check_count("max_iterations", max_iterations)
    J = as_operator(J)
    if v is not None and not norms(v).all():
        raise InputError("v is zero for some sample, and power iteration cannot start from zero.")
    best, v = _round(J, start(J.input_shape, J) if v is None else normalized(v), tol)
    for i in range(2, max_iterations + 1):
        if all_done(J, best.converged):
            break
        new, v = _round(J, v, tol)
        best = _keep_converged(best, new, i)
    return best


def _round(J: Operator, v: Tensor, tol: float) -> tuple[Estimate, Tensor]:
    """The triple of the unit vector v, and the next v."""
    w = J.jvp(v)
    sigma = norms(w)
    u = divided(w, sigma)
    pulled = J.vjp(u)
    residual = norms(pulled - column(sigma, v) * v)
    return Estimate(sigma, u, v, residual, reached(sigma, residual, tol), 1), normalized(pulled)


def _keep_converged(old: Estimate, new: Estimate, iterations: int) -> Estimate:
    """The new estimate, except for samples that had already converged: these do not change any more."""
    done = old.converged

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(column(done, a), a, b)

    return Estimate(
        pick(old.sigma, new.sigma),
        pick(old.u, new.u),
        pick(old.v, new.v),
        pick(old.residual, new.residual),
        done | new.converged,
        iterations,
    )
