"""A growing space of left vectors, and the best right vector that its products give."""

from __future__ import annotations

import torch
from torch import Tensor

from .gram import gram_of
from .operator import Operator, flat, normalized, norms


class Ritz:
    """Rayleigh–Ritz on J Jᵀ: of all v = Jᵀu, u in the space, the one with the largest ‖Jᵀu‖/‖u‖.

    `right` takes a product Jᵀu with a new u, and `grow` takes J v of what `right` gave: after as many
    products as power iteration has, v is the best of a Krylov space, of which power iteration has one vector.
    """

    def __init__(self, J: Operator, u: Tensor):
        self.J = J
        self._new = self.u = u  # u: what v = Jᵀu/‖Jᵀu‖ was found from
        self._U: list[Tensor] = []  # orthonormal
        self._C: list[Tensor] = []  # Jᵀ of each

    def right(self) -> Tensor:
        pulled = self.J.vjp(self._new)
        self._U.append(flat(self._new))
        self._C.append(flat(pulled))
        if len(self._C) == 1:
            return normalized(pulled)
        C = torch.stack(self._C, 1)
        weights = torch.linalg.eigh(gram_of(C).nan_to_num(0.0, 0.0, 0.0)).eigenvectors[:, :, -1:]
        self.u = (torch.stack(self._U, 2) @ weights)[:, :, 0].view(self.u.shape)
        return normalized((C.mT @ weights)[:, :, 0]).view(pulled.shape)

    def gap(self, w: Tensor) -> Tensor:
        """‖J v − σu‖ relative to σ, on average over samples: for w = J v, the sine of its angle to u."""
        along = (flat(w) * flat(self.u)).sum(1, keepdim=True)
        return norms(flat(w) - along * flat(self.u)).sum() / norms(w).sum().clamp_min(
            torch.finfo(w.dtype).tiny
        )

    def grow(self, w: Tensor) -> None:
        U, rest = torch.stack(self._U, 2), flat(w)
        for _ in range(2):  # twice is enough (Kahan)
            rest = rest - (U @ (U.mT @ rest[..., None]))[..., 0]
        is_new = norms(rest) > 10 * torch.finfo(w.dtype).eps * norms(w)  # else the space is complete
        self._new = torch.where(is_new[:, None], normalized(rest), 0).view(w.shape)
