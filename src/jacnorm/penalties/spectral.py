"""The paper's penalty: weight · mean_i h(‖J(x_i)‖₂), its loss l_spec."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..checks import check_count, check_positive
from ..errors import InputError
from ..estimators.operator import flat, normalized, norms
from ..linearization import Linearization
from .base import Penalty

MAX_SAMPLES = 10**9

Shape = Literal["identity", "square", "hinge"]


class SpectralPenalty(Penalty):
    """The spectral norm of the Jacobian at each sample.

    By the envelope theorem dσ = uᵀ dJ v at the top singular pair, so u is found without a graph and one
    differentiable product, σ = ‖Jᵀu‖, carries the gradient. Nothing is back-propagated through the iteration.

    Without `index` each call starts from a random vector, as the paper does, and takes `iterations` rounds.
    With `index` it goes on from the u that these samples had the last time. Back-propagating ‖Jᵀu‖ brings
    the gradient J v to u: the next round of power iteration, for free, and with `iterations=1` there is
    no other. The estimate sharpens from epoch to epoch as the network settles. (It is the `backward()` of the
    loss that brings it; `torch.autograd.grad` with respect to the parameters alone does not.) One penalty
    serves one network, since the vectors belong to it.

    h
        "identity" is the paper's σ; "square" is σ²; "hinge" is max(0, σ − threshold).
    """

    u: Tensor  # (samples, n_out), unit rows

    def __init__(
        self,
        weight: float = 0.01,
        iterations: int = 1,
        *,
        h: Shape = "identity",
        threshold: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(weight, seed)
        check_count("iterations", iterations)
        check_positive("threshold", threshold)
        if h not in get_args(Shape):
            raise InputError(f"h={h!r}: choose one of {', '.join(get_args(Shape))}.")
        self.iterations, self.h, self.threshold = iterations, h, threshold
        self.register_buffer("u", torch.empty(0, 0))

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        """The penalty; with `index`, J v is stored as the next u when the loss is back-propagated."""
        u = self._from_random(J) if index is None else self._from_stored(J, index)
        sigma = torch.linalg.vector_norm(flat(J.vjp(u)), dim=1)
        return self.weight * self._shaped(sigma).mean()

    def _shaped(self, sigma: Tensor) -> Tensor:
        if self.h == "hinge":
            return torch.relu(sigma - self.threshold)
        return sigma.square() if self.h == "square" else sigma

    @torch.no_grad()
    def _from_random(self, J: Linearization) -> Tensor:
        v = normalized(self.random(J.input_shape, J))
        return self._more_rounds(J, normalized(J.jvp(v)))

    def _from_stored(self, J: Linearization, index: Tensor) -> Tensor:
        index = _checked(index, J.output_shape[0]).to(J.device)
        self.make_room(J, index)
        with torch.no_grad():
            u = self._more_rounds(J, self.u[index].view(J.output_shape))
            if self.iterations > 1:
                self._store(index, u)
        if torch.is_grad_enabled():
            u.requires_grad_().register_hook(lambda gradient: self._store(index, gradient))
        return u

    def _more_rounds(self, J: Linearization, u: Tensor) -> Tensor:
        for _ in range(self.iterations - 1):
            u = normalized(J.jvp(normalized(J.vjp(u))))
        return u

    @torch.no_grad()
    def _store(self, index: Tensor, direction: Tensor) -> None:
        """Keep the direction. The gradient at u is a positive multiple of J v, or says nothing: it is zero,
        or has overflowed under a loss scale that is too large."""
        rows = normalized(direction).reshape(len(index), -1)
        if rows.shape[1:] == self.u.shape[1:]:  # else another network has come in between
            size = norms(direction)
            known = ((size > 0) & torch.isfinite(size))[:, None]
            self.u[index] = torch.where(known, rows, self.u[index])

    def make_room(self, J: Linearization, index: Tensor) -> None:
        """Random vectors for samples that are new. (Each call does it for its own; where several processes
        share a batch, all must do it for the whole, to draw alike.)"""
        n_out = J.output_shape[1:].numel()
        table = self.u if self.u.shape[1:] == (n_out,) else self.u.new_empty(0, n_out)
        table = table.to(dtype=J.dtype, device=J.device)
        missing = int(index.max()) + 1 - len(table)
        if missing > 0:  # grow in large steps, since a first epoch asks for row after row
            new = self.random(torch.Size((max(missing, len(table) // 2), n_out)), J)
            table = torch.cat([table, normalized(new)])
        self.u = table.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if prefix + "u" in state_dict:  # as many rows as were saved
            self.u = torch.empty_like(state_dict[prefix + "u"], device=self.u.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        shape = f", h='hinge', threshold={self.threshold}" if self.h == "hinge" else f", h={self.h!r}"
        return f"weight={self.weight}, iterations={self.iterations}{shape}"


def _checked(index: object, batch: int) -> Tensor:
    index = torch.as_tensor(index)
    if index.shape != (batch,) or index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(
            f"index has shape {tuple(index.shape)} and dtype {index.dtype}; it must hold the "
            f"position in the data set of each of the {batch} samples, as whole numbers."
        )
    if index.min() < 0 or index.max() >= MAX_SAMPLES:
        raise InputError(
            f"index goes from {int(index.min())} to {int(index.max())}; positions in a data set start at 0, "
            "and there is a stored vector for each up to the largest."
        )
    return index.long()
