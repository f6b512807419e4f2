"""`spectral_norm`, `singular_values` and `frobenius_norm`. They choose the method by the shape of J."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..pytorch.precision import in_full_precision
from ..trust.checks import check_count, check_positive
from .estimate import Estimate
from .gram import both_ways, gram, rows
from .lanczos import deflated, lanczos
from .operator import Operator, Transposed, as_operator, basis, decomposable, is_wide, norms, size

# With at most this many outputs (or inputs), computing all rows of J is no slower than an iteration that
# converges, and the answer is exact.
SMALL = 32


def spectral_norm(J: Operator | Tensor, *, tol: float = 1e-3, max_iterations: int = 100) -> Estimate:
    """The spectral norm ‖J‖₂ of each sample: exact if one side of J is small, else by the Lanczos method.

    J
        A linearization, another operator, or a matrix (m, n) or (B, m, n).
    tol
        The relative tolerance of the residual.
    max_iterations
        The largest number of Lanczos rounds.

    Returns an `Estimate` with `sigma` (B,), `u` (B, *output), `v` (B, *input), `residual` (B,) and
    `converged` (B,). Check `converged` before you trust `sigma`; `residual` says how far off it may be.
    Raises `InputError` if an argument does not fit, `CoupledSamplesError` if J was linearized with
    coupled=True.

    >>> spectral_norm(torch.diag(torch.tensor([3.0, 1.0]))).sigma
    tensor([3.])
    """
    check_positive("tol", tol)
    check_count("max_iterations", max_iterations)
    is_half = bool(getattr(J, "is_half", False))  # only a linearization has it
    J = both_ways(as_operator(J))
    if _smaller_side(J) <= SMALL:
        found = gram(J, tol=tol)
    else:
        found = lanczos(J, tol=tol, max_iterations=max_iterations)
    return replace(found, is_half=is_half)


@in_full_precision
@torch.no_grad()
def singular_values(
    J: Operator | Tensor, k: int = 5, *, tol: float = 1e-6, max_iterations: int = 300
) -> Tensor:
    """The k largest singular values of each sample, largest first.

    J is a linearization, another operator, or a matrix (m, n) or (B, m, n). `tol` is the relative tolerance,
    and `max_iterations` the largest number of Lanczos rounds per value; the values are exact if one side of J
    is small. Returns a tensor (B, k), with fewer columns if J has fewer singular values. Raises the errors of
    `spectral_norm`.

    >>> singular_values(torch.diag(torch.tensor([3.0, 1.0, 2.0])), k=2)
    tensor([[3., 2.]])
    """
    check_count("k", k)
    check_positive("tol", tol)
    check_count("max_iterations", max_iterations)
    J = both_ways(as_operator(J))
    J = J if is_wide(J) else Transposed(J)
    k = min(k, size(J.output_shape))
    if size(J.output_shape) <= SMALL:
        return torch.linalg.svdvals(decomposable(rows(J)))[:, :k]
    return deflated(J, k, tol, max_iterations)[0]


@in_full_precision
@torch.no_grad()
def frobenius_norm(J: Operator | Tensor) -> Tensor:
    """The Frobenius norm ‖J‖_F of each sample, exact.

    It costs one product per output, or per input if those are fewer. J is a linearization, another operator,
    or a matrix (m, n) or (B, m, n). Returns a tensor of shape (B,). Raises the errors of `spectral_norm`.

    >>> frobenius_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor([5.])
    """
    J = both_ways(as_operator(J))
    J = J if is_wide(J) else Transposed(J)
    of_rows = [norms(J.vjp(basis(J.output_shape, J, i))) for i in range(size(J.output_shape))]
    return norms(torch.stack(of_rows, 1))


def _smaller_side(J: Operator) -> int:
    return min(size(J.input_shape), size(J.output_shape))
