"""What all penalties share: a weight, and random vectors that do not disturb anyone else's."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from ..checks import check_positive
from ..errors import InputError
from ..linearization import Linearization
from ..precision import without_autocast


class Penalty(nn.Module, ABC):
    """`penalty(J)` is a scalar to add to the loss.

    In `penalty(J, index=idx)`, `idx` says which samples of the data set these are.
    """

    def __init__(self, weight: float, seed: int = 0):
        super().__init__()
        check_positive("weight", weight)
        self.weight, self.seed = weight, seed
        self._draws = 0

    def __call__(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        if not isinstance(J, Linearization):
            raise InputError(
                f"A penalty takes J = jacnorm.linearize(model, x), found {type(J).__name__}; "
                "J.output is model(x)."
            )
        with without_autocast(J.device):
            result: Tensor = super().__call__(J, index=index)
        return result

    @abstractmethod
    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor: ...

    def random(self, shape: torch.Size, like: Tensor | Linearization) -> Tensor:
        """Gaussian numbers from this penalty's own stream; torch's global state is left alone."""
        generator = torch.Generator(like.device).manual_seed(self.seed + 1_000_003 * self._draws)
        self._draws += 1
        return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)

    # The position in the stream is saved with state_dict, so that a resumed training draws on.
    def get_extra_state(self) -> Tensor:
        return torch.tensor(self._draws)

    def set_extra_state(self, state: Tensor) -> None:
        self._draws = int(state)

    def extra_repr(self) -> str:
        return f"weight={self.weight}"
