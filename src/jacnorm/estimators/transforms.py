"""Operators made from an operator: a·J + b·I, and J D."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from .operator import Operator, start

Map = Callable[[Tensor], Tensor]


class Affine:
    """scale·J + shift·I."""

    def __init__(self, J: Operator, scale: float, shift: float):
        if J.input_shape != J.output_shape:
            raise InputError(
                "scale·J + shift·I needs an output of the input's shape; J goes from "
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
    """J D, for D a tensor of factors or the functions v ↦ D v and u ↦ Dᵀ u."""

    def __init__(self, J: Operator, D: Tensor | tuple[Map, Map]):
        self._J = J
        self._push, self._pull = _scaling(D, J) if isinstance(D, Tensor) else _checked(D, J)
        self.input_shape, self.output_shape = J.input_shape, J.output_shape
        self.dtype, self.device = J.dtype, J.device

    def jvp(self, v: Tensor, pairing: Any = None) -> Tensor:
        return _jvp(self._J, self._push(v), pairing)

    def vjp(self, u: Tensor, pairing: Any = None) -> Tensor:
        return self._pull(_vjp(self._J, u, pairing))


def _jvp(J: Any, v: Tensor, pairing: Any) -> Tensor:
    """(What is no linearization knows no pairing, and none is asked of it.)"""
    return J.jvp(v) if pairing is None else J.jvp(v, pairing)


def _vjp(J: Any, u: Tensor, pairing: Any) -> Tensor:
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


def _checked(D: tuple[Map, Map], J: Operator) -> tuple[Map, Map]:
    """A transpose that is none would make every norm wrong without a word."""
    push, pull = D
    u, v = (start(J.input_shape, J, seed) for seed in (0, 1))
    with torch.no_grad():
        pushed, pulled = push(v), pull(u)
    if not (pushed.shape == pulled.shape == J.input_shape):
        raise InputError(f"D and Dᵀ must keep the input's shape, {tuple(J.input_shape)}.")
    gap = float(((pushed * u).sum() - (pulled * v).sum()).abs())
    if not gap <= torch.finfo(J.dtype).eps ** 0.5 * float(pushed.norm() * u.norm()):
        raise InputError("The second function is not the transpose of the first: ⟨D v, u⟩ ≠ ⟨v, Dᵀ u⟩.")
    return push, pull
