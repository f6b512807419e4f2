"""Forms of the spectral penalty that are not the default, to compare with.

All use dσ = uᵀ dJ v with u and v held fixed. They differ in the vector that is stored and in the product that
carries the gradient. Each is (x, index) -> (output, σ of each sample).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ... import linearize
from ...estimators.operator import normalized, norms


class Remembering:
    """One stored vector per sample, random at first."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.table: dict[int, Tensor] = {}
        self._generator = torch.Generator().manual_seed(0)

    def read(self, index: Tensor, shape: torch.Size) -> Tensor:
        new = torch.randn(shape, generator=self._generator)
        rows = [self.table.get(i, row) for i, row in zip(index.tolist(), new, strict=True)]
        return normalized(torch.stack(rows))

    def followed(self, index: Tensor, shape: torch.Size) -> Tensor:
        """The stored vectors. The gradient that arrives at them is stored next."""
        vectors = self.read(index, shape)
        if torch.is_grad_enabled():
            vectors.requires_grad_().register_hook(lambda gradient: self.write(index, gradient))
        return vectors

    def write(self, index: Tensor, vectors: Tensor) -> None:
        self.table.update(zip(index.tolist(), normalized(vectors.detach()), strict=True))


class StoredBackward(Remembering):
    """σ = ‖Jᵀu‖; the gradient that arrives at u is J v, the next u."""

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        J = linearize(self.model, x)
        return J.output, norms(J.vjp(self.followed(index, J.output_shape)))


class StoredForward(Remembering):
    """σ = ‖J v‖; the gradient that arrives at v is Jᵀu, the next v. It stores n_in numbers per sample."""

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        J = linearize(self.model, x)
        return J.output, norms(J.jvp(self.followed(index, J.input_shape)))


class StoredRefined(Remembering):
    """σ = ‖J v‖ with v = Jᵀu/‖Jᵀu‖, back-propagated. The gradient has J v for u, at one more sweep."""

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        J = linearize(self.model, x)
        u = self.read(index, J.output_shape)
        with torch.no_grad():
            v = normalized(J.vjp(u))
        w = J.jvp(v)
        self.write(index, w)
        return J.output, norms(w)


class FromLoss:
    """Nothing is stored. u is the gradient of the loss in the scores, with the predicted class as label."""

    def __init__(self, model: nn.Module):
        self.model = model

    def __call__(self, x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        J = linearize(self.model, x)
        with torch.no_grad():
            u = J.output.softmax(1)
            u.scatter_add_(1, u.argmax(1, keepdim=True), -u.new_ones(len(u), 1))
            v = normalized(J.vjp(normalized(u)))
        return J.output, norms(J.jvp(v))
