"""Operators: batches of linear maps, given by their products and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ..errors import InputError, NonFiniteError
from ..pytorch.precision import at_least_single
from ..pytorch.tracing import gaussian, tracing
from ..trust.checks import check_vector


class Operator(Protocol):
    """A batch of B linear maps. `input_shape` is (B, *input) and `output_shape` is (B, *output).

    `jvp` takes v of shape `input_shape` and returns J v of shape `output_shape`. `vjp` takes u of shape
    `output_shape` and returns Jᵀu of shape `input_shape`.
    """

    input_shape: torch.Size
    output_shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def jvp(self, v: Tensor) -> Tensor: ...

    def vjp(self, u: Tensor) -> Tensor: ...


class Matrix:
    """A matrix A, (m, n), or a batch of matrices, (B, m, n), as an operator."""

    def __init__(self, A: Tensor):
        if A.dim() not in (2, 3) or not A.is_floating_point():
            raise InputError(
                f"A matrix must be real with shape (m, n) or (B, m, n), found {A.dtype} {tuple(A.shape)}."
            )
        if A.numel() == 0:
            raise InputError(f"A matrix has shape {tuple(A.shape)}: no axis may be empty.")
        A = A.to(at_least_single(A.dtype))
        self.A = A if A.dim() == 3 else A.unsqueeze(0)
        batch, m, n = self.A.shape
        self.input_shape, self.output_shape = torch.Size((batch, n)), torch.Size((batch, m))
        self.dtype, self.device = A.dtype, A.device

    def jvp(self, v: Tensor) -> Tensor:
        check_vector("v", v, self.input_shape, "the matrices' rows")
        return torch.einsum("bmn,bn->bm", self.A, v)

    def vjp(self, u: Tensor) -> Tensor:
        check_vector("u", u, self.output_shape, "the matrices' columns")
        return torch.einsum("bmn,bm->bn", self.A, u)


class Transposed:
    """The same operator with its two products swapped."""

    def __init__(self, J: Operator):
        self.input_shape, self.output_shape = J.output_shape, J.input_shape
        self.dtype, self.device = J.dtype, J.device
        self.jvp, self.vjp, self.agreed = J.vjp, J.jvp, agreement(J)


def agreement(J: Operator) -> Callable[[int], int]:
    """A function that returns the largest number among the processes that share J; else the number itself."""
    found: Callable[[int], int] = getattr(J, "agreed", int)
    return found


def all_done(J: Operator, done: Tensor) -> bool:
    """Whether all samples are done, in all processes that share J."""
    return not agreement(J)(not bool(done.all()))


def as_operator(J: Operator | Tensor) -> Operator:
    if isinstance(J, Tensor):
        return Matrix(J)
    J = getattr(J, "flat", J)  # for a model with several inputs
    if not (hasattr(J, "jvp") and hasattr(J, "vjp")):
        raise InputError(
            f"A linearization or a matrix is needed, found {type(J).__name__}: linearize(model, x)"
        )
    check_uncoupled(J)
    return J


def check_uncoupled(J: object) -> None:
    if getattr(J, "is_coupled", False):
        raise InputError(
            "J was linearized with coupled=True: samples depend on each other, so there is no Jacobian per "
            "sample. GradientPenalty accepts such a J, unless reduction='none'. Or treat the batch as one "
            "sample: linearize(lambda z: model(z[0])[None], x[None])."
        )


def decomposable(A: Tensor) -> Tensor:
    """A in float32 or float64, as eigh and svd need it. Raises `NonFiniteError` if it has NaN or inf."""
    if not tracing() and not torch.isfinite(A).all():
        raise NonFiniteError("The Jacobian has NaN or inf entries: did a derivative overflow?")
    return A.to(at_least_single(A.dtype))


def is_wide(J: Operator) -> bool:
    """Whether J has no more outputs than inputs, so that J Jᵀ is no larger than JᵀJ."""
    return size(J.output_shape) <= size(J.input_shape)


def size(shape: torch.Size) -> int:
    return shape[1:].numel()


def norms(w: Tensor) -> Tensor:
    """The 2-norm of each sample, without overflow or underflow."""
    rows = flat(w)
    if w.dtype == torch.float32 and w.device.type in ("cpu", "cuda"):  # their squares fit into a double
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).to(w.dtype)
    scale = rows.detach().abs().amax(1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    return torch.linalg.vector_norm(rows / scale, dim=1) * scale[:, 0]


def flat(w: Tensor) -> Tensor:
    """Each sample as one row."""
    return w.reshape(w.shape[0], -1)


def normalized(w: Tensor) -> Tensor:
    """Each sample divided by its norm. A zero sample stays zero."""
    return divided(w, norms(w))


def divided(w: Tensor, by: Tensor, factor: Tensor | float = 1.0) -> Tensor:
    """factor·w/by, with one number per sample in `factor` and `by`. A zero sample stays zero."""
    return w * column(factor / by.clamp_min(torch.finfo(by.dtype).tiny), w)


def column(values: Tensor, like: Tensor) -> Tensor:
    """One number per sample, shaped to multiply `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def basis(shape: torch.Size, J: Operator, i: int) -> Tensor:
    """The i-th unit vector, for every sample."""
    e = torch.zeros(shape[0], size(shape), dtype=J.dtype, device=J.device)
    e[:, i] = 1
    return e.view(shape)


def start(shape: torch.Size, like: Operator | Tensor, seed: int = 0) -> Tensor:
    """A fixed random unit vector, the same for every sample, so that no estimate depends on the batch."""
    one = gaussian(torch.tensor(seed, device="cpu"), shape[1:], torch.float64, torch.device("cpu"))
    one = one / one.norm()
    return one.to(dtype=like.dtype, device=like.device).expand(shape).clone()
