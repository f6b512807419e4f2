"""Measuring: the right estimator for the shape at hand."""

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

# With this many outputs (or inputs) or fewer, all rows of J cost no more than an iteration that has to
# converge, and the answer is exact.
SMALL = 32


def spectral_norm(J: Operator | Tensor, *, tol: float = 1e-3, max_iterations: int = 100) -> Estimate:
    """‖J‖₂ of each sample, exact where one side of J is small and by Lanczos otherwise.

    `tol` is relative. Look at `converged` before you trust `sigma`, and at `residual` for how far off it
    may be.

    >>> spectral_norm(torch.diag(torch.tensor([3.0, 1.0]))).sigma
    tensor([3.])
    """
    check_positive("tol", tol)
    check_count("max_iterations", max_iterations)
    is_half = bool(getattr(J, "is_half", False))  # of a linearized network
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
    """The k largest singular values of each sample, (B, k), largest first (fewer if J has fewer).

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
    """‖J‖_F of each sample, exact: one product for each output, or input if they are fewer.

    >>> frobenius_norm(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor([5.])
    """
    J = both_ways(as_operator(J))
    J = J if is_wide(J) else Transposed(J)
    of_rows = [norms(J.vjp(basis(J.output_shape, J, i))) for i in range(size(J.output_shape))]
    return norms(torch.stack(of_rows, 1))


def _smaller_side(J: Operator) -> int:
    return min(size(J.input_shape), size(J.output_shape))
