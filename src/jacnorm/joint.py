"""Several inputs of one model, differentiated together: J is that of all of them side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .engines.pairing import Pairing
from .engines.section import Shapes, apart, side_by_side
from .errors import InputError
from .linearization import Linearization


class JointLinearization(Linearization):
    """J of a model with several inputs, J = [J₁ J₂ …]. Its norms are those of the whole.

    `jvp` takes a tangent for each input, None for one that is zero, and `vjp` gives a cotangent for each. To
    all else J is a map from the inputs side by side in one row: `flat` is that map, and `split` takes such a
    row apart, the `v` of an `Estimate` for one.
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
        """J v for v = (v₁, v₂, …), each shaped like its input or None."""
        return self.flat.jvp(self._row(v), pairing)

    def vjp(self, u: Tensor, pairing: Pairing | None = None) -> Any:
        """Jᵀ u for u shaped like the output: a tuple, each shaped like its input."""
        return self.split(self.flat.vjp(u, pairing))

    def split(self, row: Tensor) -> tuple[Tensor, ...]:
        """What of a row, (B, n), belongs to each input."""
        return apart(row, self.shapes)

    def dense(self) -> Tensor:
        """All of J, shape (B, n_out, n_in): the columns of the inputs side by side."""
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
    """The inputs of a batch in one row per sample, and the shape of each."""
    for i, x in enumerate(xs):
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0:
            found = f"dtype {x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise InputError(
                f"x[{i}] must be a tensor of real numbers with the batch as its first axis, found {found}. "
                "Give what is no such input as a further argument: "
                "linearize(model, (x, t), mask)."
            )
    if len({len(x) for x in xs}) > 1:
        raise InputError(f"The inputs have batches of {[len(x) for x in xs]} samples: they must be alike.")
    if len({(x.dtype, x.device) for x in xs}) > 1:
        found = ", ".join(f"{x.dtype} on {x.device}" for x in xs)
        raise InputError(f"The inputs are {found}: give them one dtype and device.")
    if not xs:
        raise InputError("x is an empty tuple: give the inputs that J is taken in, as (x, t).")
    return side_by_side(xs), tuple(x.shape[1:] for x in xs)
