"""Weight decay, the paper's L2 baseline."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import InputError
from ..linearization import Linearization
from .base import Penalty


class WeightDecay(Penalty):
    """weight/2 · ‖θ‖² over all parameters θ that require a gradient (Krogh & Hertz, 1991).

    `penalty(J)` returns a scalar. Its gradient is that of `weight_decay=` of SGD. Raises `InputError` if the
    model of J is a plain function.
    """

    def __init__(self, weight: float = 0.01):
        super().__init__(weight)

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        if not isinstance(J.model, nn.Module):
            raise InputError(
                "WeightDecay needs the parameters of an nn.Module, but the linearized model is a plain "
                "function. Pass the module, or use weight_decay= of the optimizer."
            )
        total = J.output.new_zeros(())
        for parameter in J.model.parameters():
            if parameter.requires_grad:
                total = total + parameter.square().sum()
        return self.weight / 2 * total
