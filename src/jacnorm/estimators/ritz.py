"""A growing space of left vectors u, and the best right vector among all Jᵀu."""

from __future__ import annotations

import torch
from torch import Tensor

from .gram import gram_of
from .operator import Operator, flat, normalized, norms


class Ritz:
    """Rayleigh–Ritz on J Jᵀ: among all v = Jᵀu with u in the space, the one with the largest ‖Jᵀu‖/‖u‖.

    `right` computes Jᵀu for the new u and returns the best v. `grow` takes w = J v and adds it to the space.
    With the same number of products, power iteration gives one vector of this Krylov space; this method gives
    the best one.
    """

    def __init__(self, J: Operator, u: Tensor):
        self.J = J
        self._new = self.u = u  # `self.u` is the u of the last v = Jᵀu/‖Jᵀu‖
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
        """‖J v − σu‖/σ for w = J v, on average over samples: the sine of the angle between w and u."""
        along = (flat(w) * flat(self.u)).sum(1, keepdim=True)
        return norms(flat(w) - along * flat(self.u)).sum() / norms(w).sum().clamp_min(
            torch.finfo(w.dtype).tiny
        )

    def grow(self, w: Tensor) -> None:
        U, rest = torch.stack(self._U, 2), flat(w)
        for _ in range(2):  # two rounds are enough (Kahan)
            rest = rest - (U @ (U.mT @ rest[..., None]))[..., 0]
        is_new = norms(rest) > 10 * torch.finfo(w.dtype).eps * norms(w)  # else the space is complete
        self._new = torch.where(is_new[:, None], normalized(rest), 0).view(w.shape)
