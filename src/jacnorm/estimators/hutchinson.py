"""Frobenius norms from random projections."""

from __future__ import annotations

import torch
from torch import Tensor

from ..pytorch.precision import in_full_precision
from ..trust.checks import check_count
from .operator import Operator, as_operator, normalized, norms, size


@in_full_precision
@torch.no_grad()
def hutchinson(
    J: Operator | Tensor, *, projections: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """An unbiased estimate of ‖J‖_F² for each sample: n_out · mean_j ‖Jᵀ u_j‖², u_j uniform on the sphere.

    J is an operator, or a matrix (m, n) or (B, m, n); `projections` is the number of vectors u_j. Returns a
    tensor of shape (B,). (Hoffman, Roberts & Yaida, 2019; the expression above eq. (2) of the paper.)
    """
    check_count("projections", projections)
    J = as_operator(J)
    total = torch.zeros(J.output_shape[0], dtype=J.dtype, device=J.device)
    for _ in range(projections):
        u = torch.randn(J.output_shape, generator=generator, dtype=J.dtype, device=J.device)
        total += norms(J.vjp(normalized(u))) ** 2
    return total * size(J.output_shape) / projections
