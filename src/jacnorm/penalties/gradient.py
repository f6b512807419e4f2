"""The gradient of the loss in the input: input-gradient regularization, R1 and R2 of GANs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engines.pairing import Pairing
from ..errors import InputError
from ..estimators.operator import divided, flat, norms
from ..linearization import Linearization
from ..pytorch.tracing import inside_torch_func, refuse, tracing
from .norm import Common, NormPenalty

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, labels: Tensor) -> Tensor:
    """Of each sample."""
    return F.cross_entropy(output, labels, reduction="none")


class GradientPenalty(NormPenalty):
    """weight · mean_i h(‖∇ₓ loss(f(x_i), y_i)‖_p), as penalty(J, labels=y).

    The gradient is Jᵀr with r = ∂loss/∂f. With s = ∂‖·‖/∂(Jᵀr), that is Jᵀr/‖Jᵀr‖ or its signs,

        ∂‖Jᵀr‖ = rᵀ(∂J) s + ⟨J s, ∂r⟩,

    and the second term, with the loss's second derivative, enters at J.output.

    loss
        A function of the output and the labels that gives one number for each sample; cross-entropy if it
        is left out. None for the sum of each sample's outputs, which is what a critic's penalty takes.
    p
        2, or 1 for the sum of absolute values: what an attack in the ℓ∞ ball gains, to first order.
    """

    takes_coupled = True

    def __init__(
        self,
        weight: float = 0.01,
        loss: Loss | None = cross_entropy,
        *,
        p: float = 2,
        **common: Unpack[Common],
    ):
        super().__init__(weight, **common)
        if loss is not None and not callable(loss):
            raise InputError(f"loss={loss!r}: give a function of the output and the labels, or None.")
        self.loss, self.p = loss, check_order(p)
        self.needs_labels = loss is not None

    def forward(self, J: Linearization, index: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        check_output_of(J, "GradientPenalty")
        r, pairing = self._residual(J, labels), Pairing()
        with torch.no_grad():
            c = J.vjp(r.detach(), pairing)
            length, s = dual(c, self.p)
        return self.carried(J, length, [(r, s)], pairing)

    def _residual(self, J: Linearization, labels: Tensor | None) -> Tensor:
        """∂loss/∂f of each sample, with a graph back to J.output."""
        if self.loss is None:
            return torch.ones_like(J.output, dtype=J.dtype, requires_grad=False)
        if tracing() or inside_torch_func():
            refuse("GradientPenalty differentiates the loss, which a compiled step cannot: leave it out.")
        is_live = torch.is_grad_enabled() and J.output.requires_grad
        with torch.enable_grad():
            output = J.output if is_live else J.output.detach().requires_grad_()
            losses = self.loss(output, labels)  # type: ignore[arg-type]
            if not isinstance(losses, Tensor) or losses.shape != output.shape[:1]:
                found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise InputError(
                    f"The loss must give one number for each of the {len(output)} samples, found {found}: "
                    "reduction='none', and a mean over what each sample has of its own."
                )
            if not losses.requires_grad:
                raise InputError(
                    "The loss does not depend on the output for autograd (is there a detach, no_grad or "
                    "argmax in it?), so that its gradient would be zero."
                )
            (r,) = torch.autograd.grad(losses.sum(), output, create_graph=is_live)
        return r.to(J.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p:g}"


def check_order(p: float) -> float:
    if str(p) not in ("1", "1.0", "2", "2.0"):
        raise InputError(f"p={p!r}: choose 1 or 2, the norm of the gradient.")
    return float(p)


def check_output_of(J: Linearization, who: str) -> None:
    if not J.is_of_output:
        raise InputError(
            f"{who} needs the Jacobian of the model's output, {tuple(J.output.shape)}; this one is of "
            f"something else, {tuple(J.output_shape)}: leave out to= and project()."
        )


def dual(c: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """‖c‖_p of each sample, and its derivative in c."""
    if p == 1:
        return flat(c).abs().sum(1), c.sign()
    length = norms(c)
    return length, divided(c, length)
