"""The paper's penalty: weight · mean_i h(‖J(x_i)‖₂), eq. (9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..checks import check_count, check_positive
from ..errors import InputError
from ..estimators.operator import column, normalized, norms
from ..linearization import Linearization
from .base import Penalty


class SpectralPenalty(Penalty):
    """The spectral norm of the Jacobian at each sample.

    By the envelope theorem dσ = uᵀ dJ v at the top singular pair, so u is found without a graph and one
    differentiable product, σ = ‖Jᵀu‖, carries the gradient. Nothing is back-propagated through the iteration.

    Without `index` each call starts from a random vector, as the paper does, and takes `iterations` rounds.
    With `index` it goes on from the u that these samples had the last time. Back-propagating ‖Jᵀu‖ brings
    the gradient J v to u: the next round of power iteration, for free, and with `iterations=1` there is
    no other. The estimate sharpens from epoch to epoch as the network settles.

    h
        "identity" is the paper's σ; "square" is σ²; "hinge" is max(0, σ − threshold).
    """

    u: Tensor  # (samples, n_out); a row of zeros has not been seen yet

    def __init__(
        self,
        weight: float = 0.01,
        iterations: int = 1,
        *,
        h: Literal["identity", "square", "hinge"] = "identity",
        threshold: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(weight, seed)
        check_count("iterations", iterations)
        check_positive("threshold", threshold)
        shapes: dict[str, Callable[[Tensor], Tensor]] = {
            "identity": lambda sigma: sigma,
            "square": torch.square,
            "hinge": lambda sigma: torch.relu(sigma - threshold),
        }
        if h not in shapes:
            raise InputError(f"h={h!r}: choose one of {', '.join(shapes)}.")
        self.iterations, self.h = iterations, shapes[h]
        self.register_buffer("u", torch.empty(0, 0))

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        """The penalty; with `index`, J v is stored as the next u when the loss is back-propagated."""
        u = self._from_random(J) if index is None else self._from_stored(J, index)
        sigma = norms(J.vjp(u))
        return self.weight * self.h(sigma).mean()

    @torch.no_grad()
    def _from_random(self, J: Linearization) -> Tensor:
        v = normalized(self.random(J.input_shape, J.output))
        u = normalized(J.jvp(v))
        return self._rounds(J, u)

    def _from_stored(self, J: Linearization, index: Tensor) -> Tensor:
        index = self._make_room(J, index)
        with torch.no_grad():
            stored = self.u[index].view(J.output_shape)
            new = normalized(self.random(J.output_shape, J.output))
            seen = norms(stored) > 0
            u = self._rounds(J, torch.where(column(seen, stored), stored, new))
            self.u[index] = u.reshape(len(index), -1)
        if torch.is_grad_enabled():
            u.requires_grad_().register_hook(lambda gradient: self._store(index, gradient))
        return u

    def _rounds(self, J: Linearization, u: Tensor) -> Tensor:
        for _ in range(self.iterations - 1):
            u = normalized(J.jvp(normalized(J.vjp(u))))
        return u

    @torch.no_grad()
    def _store(self, index: Tensor, gradient: Tensor) -> None:
        """The gradient that arrives at u is a positive multiple of J v (or zero, which says nothing)."""
        new = normalized(gradient).reshape(len(index), -1)
        known = (norms(gradient) > 0)[:, None]
        self.u[index] = torch.where(known, new, self.u[index])

    def _make_room(self, J: Linearization, index: Tensor) -> Tensor:
        batch, n_out = J.output_shape[0], J.output_shape[1:].numel()
        if index.shape != (batch,) or index.is_floating_point() or index.dtype == torch.bool:
            raise InputError(
                f"index has shape {tuple(index.shape)} and dtype {index.dtype}; it must hold the "
                f"position in the data set of each of the {batch} samples, as whole numbers."
            )
        if index.min() < 0:
            raise InputError(f"index has {int(index.min())}; positions start at 0.")
        needed = max(len(self.u), int(index.max()) + 1)
        if self.u.shape != (needed, n_out) or self.u.device != J.device:
            old = self.u if self.u.shape[1:] == (n_out,) else self.u.new_empty(0, n_out)
            self.u = J.output.new_zeros(needed, n_out)
            self.u[: len(old)] = old
        return index.to(self.u.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if prefix + "u" in state_dict:  # as many rows as were saved
            self.u = torch.empty_like(state_dict[prefix + "u"], device=self.u.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"weight={self.weight}, iterations={self.iterations}"
