"""When a training step begins, which is seen from the weights of the network."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from ..linearization import Linearization
from ..pytorch.modules import modules_of

LOOKED_AT = 16  # parameters, at most, that tell whether the network has moved

Weights = dict[int, Tensor]  # some numbers of each parameter, by its id


class Steps:
    """Calls at the same weights of the network belong to one step."""

    def __init__(self) -> None:
        self._now: Weights = {}  # in the step under way
        self._before: Weights = {}  # in the step before it

    def begins(self, J: Linearization) -> bool:
        """Whether the network has moved since its last call. Raises `InputError` if two take turns."""
        found = some_weights(J)
        has_moved = self._has_moved(J, found)
        if has_moved:
            self._before, self._now = self._now, {}
        self._now |= found
        return has_moved

    def _has_moved(self, J: Linearization, found: Weights) -> bool:
        known = found.keys() & self._now.keys()
        if self._now and not known and found.keys() & self._before.keys():
            raise InputError(
                "This penalty has a target, and two networks use it in turn: its weight cannot follow the "
                "norms of both. Make a penalty for each network. (Under no_grad it may look at any network.)"
            )
        both = [torch.cat([of[key].to(J.device) for key in known]) for of in (found, self._now) if known]
        return bool(J.agreed(not (known and torch.equal(*both))))


def some_weights(J: Linearization) -> Weights:
    """A few numbers of a few layers, which tell whether an optimizer has moved them. (Fused ones leave no
    other trace.)"""
    everything = [p for module in modules_of(J.model).values() for p in module.parameters()]
    learning = [p for p in everything if p.requires_grad and p.numel()]
    learning = learning[:: max(1, len(learning) // LOOKED_AT)]  # from all over: a head may stand still
    rows = {id(p): (p.to_local() if hasattr(p, "to_local") else p).detach().reshape(-1) for p in learning}
    # Copies, also of float64, since an optimizer writes into the weights.
    return {key: row[:: max(1, len(row) // 8)].to(torch.float64, copy=True) for key, row in rows.items()}
