"""Operators that are made from an operator J: a·J + b·I, J D, C J, J − A and J − Jᵀ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .operator import Operator, agreement, as_operator, flat, start

Map = Callable[[Tensor], Tensor]
Constant = Tensor | tuple[Map, Map] | Operator


class Affine:
    """scale·J + shift·I."""

    def __init__(self, J: Operator, scale: float, shift: float):
        if J.input_shape != J.output_shape:
            raise InputError(
                "scale·J + shift·I needs an output with the input's shape; J goes from "
                f"{tuple(J.input_shape)} to {tuple(J.output_shape)}."
            )
        self._J, self._scale, self._shift = J, scale, shift
        self.input_shape, self.output_shape = J.input_shape, J.output_shape
        self.dtype, self.device = J.dtype, J.device

    def jvp(self, v: Tensor, pairing: Any = None) -> Tensor:
        return self._scale * _jvp(self._J, v, pairing) + self._shift * v

    def vjp(self, u: Tensor, pairing: Any = None) -> Tensor:
        return _vjp(self._J, self._scale * u, pairing) + self._shift * u


class Weighted:
    """J D. D is a tensor of factors, or a pair of functions v ↦ D v and u ↦ Dᵀ u."""

    def __init__(self, J: Operator, D: Tensor | tuple[Map, Map]):
        self._J = J
        if isinstance(D, Tensor):
            self._push, self._pull = _scaling(D, J)
        else:
            check_maps("D", D, J, J.input_shape, J.input_shape)
            self._push, self._pull = D
        self.input_shape, self.output_shape = J.input_shape, J.output_shape
        self.dtype, self.device, self.agreed = J.dtype, J.device, agreement(J)

    def jvp(self, v: Tensor, pairing: Any = None) -> Tensor:
        return _jvp(self._J, self._push(v), pairing)

    def vjp(self, u: Tensor, pairing: Any = None) -> Tensor:
        return self._pull(_vjp(self._J, u, pairing))


class Projected:
    """C J. C is a matrix, a matrix per sample, or a pair of functions w ↦ C w and u ↦ Cᵀ u."""

    def __init__(self, J: Operator, C: Tensor | tuple[Map, Map]):
        self._J = J
        if isinstance(C, Tensor):
            rows = matrix_for("C", C, J.output_shape, J)
            self._push = lambda w: _times(rows, w)
            self._pull = lambda u: _times(rows.mT, u).view(J.output_shape)
            self.output_shape = torch.Size((J.output_shape[0], rows.shape[-2]))
        else:
            self.output_shape = check_maps("C", C, J, J.output_shape)
            self._push, self._pull = C
        self.input_shape, self.dtype, self.device = J.input_shape, J.dtype, J.device

    def jvp(self, v: Tensor, pairing: Any = None) -> Tensor:
        return self._push(_jvp(self._J, v, pairing))

    def vjp(self, u: Tensor, pairing: Any = None) -> Tensor:
        return _vjp(self._J, self._pull(u), pairing)


class Minus:
    """J − A. A is a matrix, a matrix per sample, a pair of functions v ↦ A v and u ↦ Aᵀ u, or an operator.

    A is a constant: no gradient flows into it.
    """

    def __init__(self, J: Operator, A: Constant):
        self._J = J
        self._push, self._pull = _constant(A, J)
        self.input_shape, self.output_shape = J.input_shape, J.output_shape
        self.dtype, self.device = J.dtype, J.device

    def jvp(self, v: Tensor, pairing: Any = None) -> Tensor:
        return _jvp(self._J, v, pairing) - self._push(v.to(self.dtype))

    def vjp(self, u: Tensor, pairing: Any = None) -> Tensor:
        return _vjp(self._J, u, pairing) - self._pull(u.to(self.dtype))


class Antisymmetric:
    """J − Jᵀ. uᵀ∂(J − Jᵀ)v = uᵀ(∂J)v − vᵀ(∂J)u has two pairs; the second is swept in the other direction."""

    def __init__(self, J: Operator):
        if J.input_shape != J.output_shape:
            raise InputError(
                "J − Jᵀ needs an output with the input's shape; J goes from "
                f"{tuple(J.input_shape)} to {tuple(J.output_shape)}."
            )
        self._J = J
        self.input_shape, self.output_shape = J.input_shape, J.output_shape
        self.dtype, self.device = J.dtype, J.device

    def jvp(self, v: Tensor, pairing: Any = None) -> Tensor:
        back = None if pairing is None else pairing.beside(self)
        return _jvp(self._J, v, pairing) - _vjp(self._J, v, back)

    def vjp(self, u: Tensor, pairing: Any = None) -> Tensor:
        back = None if pairing is None else pairing.beside(self)
        return _vjp(self._J, u, pairing) + _jvp(self._J, -u, back)


def _jvp(J: Any, v: Tensor, pairing: Any) -> Tensor:
    """J v. Only a linearization accepts a pairing, so no other operator is given one."""
    return J.jvp(v) if pairing is None else J.jvp(v, pairing)


def _vjp(J: Any, u: Tensor, pairing: Any) -> Tensor:
    """Jᵀ u, as in `_jvp`."""
    return J.vjp(u) if pairing is None else J.vjp(u, pairing)


def _scaling(factors: Tensor, J: Operator) -> tuple[Map, Map]:
    try:
        fits = torch.broadcast_shapes(factors.shape, J.input_shape) == J.input_shape
    except RuntimeError:
        fits = False
    if not fits:
        raise InputError(
            f"D has shape {tuple(factors.shape)}, which does not broadcast to the input's, "
            f"{tuple(J.input_shape)}."
        )
    factors = factors.to(dtype=J.dtype, device=J.device)
    return (lambda v: factors * v), (lambda u: factors * u)


def differences(labels: Tensor, shape: torch.Size) -> tuple[Map, Map]:
    """w ↦ w_y − w_j for each j other than the label y, and the transpose, for rows of scores."""
    own = labels[:, None]
    others = torch.arange(shape[1] - 1, device=own.device).expand(len(own), -1)
    others = others + (others >= own)

    def push(w: Tensor) -> Tensor:
        return w.gather(1, own) - w.gather(1, others)

    def pull(u: Tensor) -> Tensor:
        w = u.new_zeros(shape).scatter(1, others, -u)
        return w.scatter_add(1, own, u.sum(1, keepdim=True))

    return push, pull


def _times(A: Tensor, w: Tensor) -> Tensor:
    """A w for each sample. A is one matrix for all samples, or a matrix per sample."""
    return (A @ flat(w)[:, :, None])[:, :, 0]


def matrix_for(name: str, A: Tensor, last: torch.Size, J: Operator) -> Tensor:
    """A in the dtype of J. Raises `InputError` if it does not have one column per number of `last`."""
    batch, columns = last[0], last[1:].numel()
    fits = A.dim() in (2, 3) and A.shape[-1] == columns and (A.dim() == 2 or len(A) == batch) and A.numel()
    if not fits or not A.is_floating_point():
        raise InputError(
            f"{name} has shape {tuple(A.shape)} and dtype {A.dtype}; it must be real with shape "
            f"(m, {columns}), or ({batch}, m, {columns}) for a matrix per sample."
        )
    return A.to(dtype=J.dtype, device=J.device)


def check_maps(
    name: str, maps: Any, J: Operator, shape: torch.Size, onto: torch.Size | None = None
) -> torch.Size:
    """The shape that the first function makes of `shape`. Raises `InputError` if the second is not its
    transpose, because every norm would then be silently wrong."""
    if not (isinstance(maps, tuple) and len(maps) == 2 and all(map(callable, maps))):
        found = f"{len(maps)} of them" if isinstance(maps, tuple) else type(maps).__name__
        raise InputError(
            f"{name} must be a tensor or a pair of functions, v ↦ {name} v and u ↦ {name}ᵀ u; found {found}."
        )
    push, pull = maps
    v = start(shape, J)
    with torch.no_grad():
        pushed = push(v)
        if onto is not None and pushed.shape != onto:
            raise InputError(
                f"{name} maps {tuple(shape)} to {tuple(pushed.shape)}; it must map it to {tuple(onto)}."
            )
        u = start(pushed.shape, J, 1)
        pulled = pull(u)
    if pushed.dim() < 2 or len(pushed) != shape[0]:
        raise InputError(
            f"{name} maps {tuple(shape)} to {tuple(pushed.shape)}: the first axis must stay the batch, and "
            "there must be a second axis."
        )
    if pulled.shape != shape:
        raise InputError(
            f"The second function of {name} must map back to {tuple(shape)}, found {tuple(pulled.shape)}."
        )
    gap = float(((pushed * u).sum() - (pulled * v).sum()).abs())
    if not gap <= torch.finfo(J.dtype).eps ** 0.5 * max(
        float(pushed.norm() * u.norm()), float(pulled.norm() * v.norm())
    ):
        raise InputError(
            f"The second function is not the transpose of the first: ⟨{name} v, u⟩ ≠ ⟨v, {name}ᵀ u⟩."
        )
    return pushed.shape


def _constant(A: Any, J: Operator) -> tuple[Map, Map]:
    if isinstance(A, Tensor):
        A = matrix_for("A", A, J.input_shape, J)
        if A.shape[-2] != J.output_shape[1:].numel():
            raise InputError(
                f"A has {A.shape[-2]} rows; J has {J.output_shape[1:].numel()}, one for each output."
            )
        return (
            lambda v: _times(A, v).view(J.output_shape),
            lambda u: _times(A.mT, u).view(J.input_shape),
        )
    if isinstance(A, tuple):
        check_maps("A", A, J, J.input_shape, J.output_shape)
        return A
    A = as_operator(A)
    if (A.input_shape, A.output_shape) != (J.input_shape, J.output_shape):
        raise InputError(
            f"A goes from {tuple(A.input_shape)} to {tuple(A.output_shape)}, and J from "
            f"{tuple(J.input_shape)} to {tuple(J.output_shape)}: J − A needs the same shapes."
        )
    return torch.no_grad()(lambda v: A.jvp(v).to(J.dtype)), torch.no_grad()(lambda u: A.vjp(u).to(J.dtype))
