"""The eigenvalue of largest modulus of a square map, with its right and left eigenvectors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..pytorch.precision import in_full_precision
from ..trust.checks import check_count, check_positive
from .operator import Operator, Transposed, as_operator, column, decomposable, flat, size, start


@dataclass(frozen=True)
class Eigenpairs:
    """The eigenvalue λ of each sample with J x = λx and Jᵀy = λy. All are complex, and ‖x‖ = ‖y‖ = 1.

    `residual` is the larger of ‖J x − λx‖ and ‖Jᵀy − λy‖. If it is large, the Krylov space was too small.
    """

    value: Tensor  # (B,)
    right: Tensor  # x, (B, *input)
    left: Tensor  # y, (B, *input)
    residual: Tensor  # (B,)
    converged: Tensor  # (B,)


@in_full_precision
@torch.no_grad()
def eigenpairs(J: Operator | Tensor, *, tol: float = 1e-3, max_iterations: int = 64) -> Eigenpairs:
    """The eigenvalue of largest modulus, by Arnoldi's method for J and for Jᵀ.

    J is an operator, or a matrix (n, n) or (B, n, n). `tol` is the relative tolerance of the residual, and
    `max_iterations` the largest dimension of the Krylov space. Returns `Eigenpairs`. Raises `InputError` if J
    is not square.

    The start is random and real. It has a part along both eigenvectors of a complex pair, and the small
    Hessenberg matrix can have complex eigenvalues. (Power iteration rotates in the plane of such a pair and
    does not converge.)

    >>> turn = torch.tensor([[0.0, -2.0], [2.0, 0.0]])
    >>> eigenpairs(turn).value.abs()
    tensor([2.])
    """
    check_positive("tol", tol)
    check_count("max_iterations", max_iterations)
    J = as_operator(J)
    if J.input_shape != J.output_shape:
        raise InputError(
            f"Eigenvalues need a square map; this one goes from {tuple(J.input_shape)} to "
            f"{tuple(J.output_shape)}."
        )
    count = min(max_iterations, size(J.input_shape))
    values, right, errors = _ritz(J, count)
    others, left, left_errors = _ritz(Transposed(J), count)
    top = values.abs().argmax(1, keepdim=True)
    value = values.gather(1, top)
    same = (others - value).abs().argmin(1, keepdim=True)
    residual = torch.maximum(errors.gather(1, top), left_errors.gather(1, same))[:, 0]

    def vector(vectors: Tensor, which: Tensor) -> Tensor:
        return vectors.take_along_dim(which[:, None], 2)[:, :, 0].view(J.input_shape)

    converged = residual <= tol * value[:, 0].abs().clamp_min(torch.finfo(J.dtype).tiny)
    return Eigenpairs(value[:, 0], vector(right, top), vector(left, same), residual, converged)


def _ritz(J: Operator, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values (B, k), vectors (B, n, k) and residuals (B, k) of a Krylov space of dimension k = count."""
    basis, H = _arnoldi(J, count)
    values, vectors = torch.linalg.eig(decomposable(H[:, :-1]))
    beyond = H[:, -1, -1][:, None] * vectors[:, -1].abs()
    return values, basis.to(vectors.dtype) @ vectors, beyond


def _arnoldi(J: Operator, count: int) -> tuple[Tensor, Tensor]:
    """V (B, n, k) orthonormal and H (B, k + 1, k) upper Hessenberg. J V = V H, except for the last row of H.

    If the space is complete earlier, the next vector is any vector orthogonal to it, and H is zero below the
    diagonal there. The eigenvalues found so far do not change.
    """
    v = flat(start(J.input_shape, J))
    V = v[:, :, None]
    H = v.new_zeros(len(v), count + 1, count)
    for i in range(count):
        w = flat(J.jvp(V[:, :, i].reshape(J.input_shape)))
        full = w.norm(dim=1)
        w, h = _without(V, w)
        H[:, : i + 1, i] = h
        length = w.norm(dim=1)
        is_complete = length <= 10 * torch.finfo(w.dtype).eps * full
        H[:, i + 1, i] = torch.where(is_complete, 0, length)
        if i + 1 < count:
            other, _ = _without(V, flat(start(J.input_shape, J, seed=i + 1)))
            w = torch.where(column(is_complete, w), other, w)
            V = torch.cat([V, (w / w.norm(dim=1, keepdim=True))[:, :, None]], 2)
    return V, H


def _without(V: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The part of w that is orthogonal to V, and Vᵀw. Two rounds are enough (Kahan)."""
    total = w.new_zeros(len(w), V.shape[2])
    for _ in range(2):
        h = (V.mT @ w[:, :, None])[:, :, 0]
        w, total = w - (V @ h[:, :, None])[:, :, 0], total + h
    return w, total
