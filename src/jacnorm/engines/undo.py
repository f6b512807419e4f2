"""Undoes the changes of a run of the model, if the run is given up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..pytorch.tracing import tracing


class Undo:
    """Copies of tensors from before they were changed in place, and the random state at the beginning."""

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps  # False if the whole model is one step by autograd: such a run is not given up
        self._before: list[tuple[Tensor, Tensor]] = []
        self._rng = torch.random.get_rng_state() if keeps and not tracing() else None

    def keep(self, *values: Any) -> None:
        if self._keeps:
            self._before += [(t, t.clone()) for t in values if isinstance(t, Tensor)]

    def roll_back(self) -> None:
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)
        if self._rng is not None:
            torch.random.set_rng_state(self._rng)
