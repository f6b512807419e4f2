"""The vectors u of recent samples. Samples with similar outputs have similar sensitive directions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..estimators.operator import flat, normalized, size
from ..linearization import Linearization
from ..pytorch.tracing import while_tracing

MOST = 128  # samples
NUMBERS = 2**22  # entries of all their vectors together
SHARPNESS = 16  # the weight of a sample is the cosine between the outputs, to this power


class RecentVectors(nn.Module):
    """The outputs of the last samples and their u, both as unit rows. Rows without a sample are zero."""

    outputs: Tensor
    u: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("outputs", torch.empty(0, 0, device="cpu"))
        self.register_buffer("u", torch.empty(0, 0, device="cpu"))

    def make_room(self, J: Linearization) -> None:
        make_room(self, size(J.output.shape), size(J.output_shape), J.dtype, J.device)

    def guess(self, J: Linearization) -> tuple[Tensor, Tensor]:
        """A guess of u for each sample of J, and for which samples there is a guess, (B,).

        The guess is the u of the sample with the most similar output, after one power step on
        Σ_j w_j u_j u_jᵀ. The step averages over all similar samples. It does not depend on the signs of the
        u_j, which are arbitrary.
        """
        if (self.outputs.shape[1], self.u.shape[1]) != (size(J.output.shape), size(J.output_shape)):
            none = torch.zeros(J.output_shape, dtype=J.dtype, device=J.device)
            return none, flat(none).any(1)
        outputs, us = (table.to(J.device, J.dtype) for table in (self.outputs, self.u))
        cosines = _unit_rows(J) @ outputs.T
        nearest = us[cosines.argmax(1)]
        weights = cosines.clamp_min(0) ** SHARPNESS * (nearest @ us.T)
        u = normalized(weights @ us)
        return u.view(J.output_shape), u.any(1)

    @torch.no_grad()
    def remember(self, J: Linearization, directions: Tensor) -> None:
        """Put the new samples first, and drop the oldest."""
        new = flat(directions).nan_to_num(0.0, 0.0, 0.0)
        for table, rows in ((self.outputs, _unit_rows(J)), (self.u, new)):
            table.copy_(torch.cat([rows, table])[: len(table)])

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("outputs", "u"):  # as many rows as were saved; earlier versions did not save them
            saved = state_dict.setdefault(prefix + name, torch.empty(0, 0, device="cpu"))
            setattr(self, name, torch.empty_like(saved, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _unit_rows(J: Linearization) -> Tensor:
    rows = flat(J.output.detach().to(J.dtype))
    if rows.shape[1] > 1:
        rows = rows - rows.mean(1, keepdim=True)
    return normalized(rows).nan_to_num(0.0, 0.0, 0.0)


@while_tracing
def make_room(
    recent: RecentVectors, n_keys: int, n_out: int, dtype: torch.dtype, device: torch.device
) -> None:
    rows = max(1, min(MOST, NUMBERS // (n_keys + n_out)))
    for name, numbers in (("outputs", n_keys), ("u", n_out)):
        table = getattr(recent, name)
        if table.shape[1] != numbers or (table.dtype, table.device) != (dtype, device):
            with torch.inference_mode(False):  # buffers made in a validation step must work in training
                setattr(recent, name, torch.zeros(rows, numbers, dtype=dtype, device=device))
