"""J of a model with several inputs, J = [J₁ J₂ …]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .engines.pairing import Pairing
from .engines.section import Shapes, apart, side_by_side
from .errors import InputError
from .linearization import Linearization


class JointLinearization(Linearization):
    """J of a model with several inputs, J = [J₁ J₂ …]. Its norms are the norms of this whole matrix.

    `jvp` takes a tuple with a tangent per input (None for zero). `vjp` returns a tuple with a cotangent per
    input. Estimators and penalties see J as a map from one row per sample, which holds all inputs side by
    side. `flat` is that map. `split` takes such a row apart, for example the `v` of an `Estimate`.
    """

    def __init__(self, J: Linearization, shapes: Shapes):
        self.__dict__ = J.__dict__
        self.shapes = shapes

    @property
    def flat(self) -> Linearization:
        plain = object.__new__(Linearization)
        plain.__dict__ = self.__dict__
        return plain

    def jvp(self, v: Any, pairing: Pairing | None = None) -> Tensor:
        """J v = J₁v₁ + J₂v₂ + … for v = (v₁, v₂, …). Each has the shape of its input, or is None for zero.

        The result has shape `output_shape`. Raises `InputError` if v does not fit.
        """
        return self.flat.jvp(self._row(v), pairing)

    def vjp(self, u: Tensor, pairing: Pairing | None = None) -> Any:
        """Jᵀ u = (J₁ᵀu, J₂ᵀu, …) for u of shape `output_shape`: a tuple, shaped like the inputs."""
        return self.split(self.flat.vjp(u, pairing))

    def split(self, row: Tensor) -> tuple[Tensor, ...]:
        """The parts of `row`, (B, n), as a tuple of tensors shaped like the inputs."""
        return apart(row, self.shapes)

    def dense(self) -> Tensor:
        """All of J, shape (B, n_out, n_in), with the columns of all inputs side by side."""
        return self.flat.dense()

    def _row(self, vs: Any) -> Tensor:
        if not isinstance(vs, tuple | list) or len(vs) != len(self.shapes):
            count = f"{len(vs)} of them" if isinstance(vs, tuple | list) else type(vs).__name__
            raise InputError(
                f"J has {len(self.shapes)} inputs: v must be a tuple with a tangent for each, None for zero; "
                f"found {count}."
            )
        batch, pieces = self.input_shape[0], []
        for i, (v, shape) in enumerate(zip(vs, self.shapes, strict=True)):
            if v is None:
                v = torch.zeros(batch, *shape, dtype=self.dtype, device=self.device)
            if not isinstance(v, Tensor) or v.shape != (batch, *shape):
                found = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
                raise InputError(
                    f"v[{i}] must have the shape of input {i}, {(batch, *shape)}; found {found}."
                )
            pieces.append(v)
        return side_by_side(pieces)


def joined(xs: tuple[Any, ...]) -> tuple[Tensor, Shapes]:
    """The inputs side by side, one row per sample, and the shape of each input."""
    for i, x in enumerate(xs):
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0:
            found = f"dtype {x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(
                f"x[{i}] must be a tensor of real numbers with the batch as its first axis, found {found}. "
                "Pass anything else as a further argument: "
                "linearize(model, (x, t), mask)."
            )
    if len({len(x) for x in xs}) > 1:
        raise InputError(f"The inputs have batches of {[len(x) for x in xs]} samples: they must be the same.")
    if len({(x.dtype, x.device) for x in xs}) > 1:
        found = ", ".join(f"{x.dtype} on {x.device}" for x in xs)
        raise InputError(f"The inputs are {found}: they must have the same dtype and device.")
    if not xs:
        raise InputError("x is an empty tuple: give the inputs to differentiate in, as (x, t).")
    return side_by_side(xs), tuple(x.shape[1:] for x in xs)
