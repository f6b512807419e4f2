"""Penalties on the gradient of the loss in the input. R1 and R2 of GANs are special cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engines.pairing import Pairing
from ..errors import InputError
from ..estimators.operator import divided, flat, norms
from ..linearization import Linearization
from ..pytorch.tracing import inside_torch_func, refuse, tracing
from ..trust.checks import as_tensor
from .curve import usable
from .norm import Common, NormPenalty
from .settings import Setting

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(output: Tensor, labels: Any) -> Tensor:
    """Of each sample. Labels may be whole numbers of any kind, or probabilities."""
    labels = as_tensor(labels).to(output.device)
    labels = labels if labels.is_floating_point() else labels.long()
    return F.cross_entropy(output, labels, reduction="none")


class GradientPenalty(NormPenalty):
    """weight · mean_i h(‖∇ₓ loss(f(x_i), y_i)‖_p). `penalty(J, labels=y)` returns a scalar.

    The gradient of the loss in x is Jᵀr with r = ∂loss/∂f. Let s = ∂‖·‖/∂(Jᵀr), which is Jᵀr/‖Jᵀr‖ for p = 2
    and the signs of Jᵀr for p = 1. Then

        ∂‖Jᵀr‖ = rᵀ(∂J) s + ⟨J s, ∂r⟩.

    The second term contains the second derivative of the loss. It enters at J.output.

    loss
        A function of the output (B, *output) and the labels that returns one number per sample, (B,). The
        default is cross-entropy. None stands for the sum of the outputs of each sample, as a critic's penalty
        needs it; `labels` are then not needed.
    p
        2, or 1 for the sum of absolute values. With p = 1 the norm is the first-order gain of an attack in
        the ℓ∞ ball, per unit of its radius.

    Further arguments are those of `NormPenalty`. Raises `InputError` if the loss does not fit, or if J is not
    the Jacobian of J.output.
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
        self.loss, self.p = loss, p
        self.needs_labels = loss is not None

    p = Setting[float](lambda _, p: check_order(p))

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
            refuse(
                "GradientPenalty differentiates the loss, and a compiled step cannot do that. Leave the "
                "penalty out of the compiled function."
            )
        is_live = torch.is_grad_enabled() and J.output.requires_grad
        with torch.inference_mode(False), torch.enable_grad():
            output = J.output if is_live else usable(J.output.detach()).requires_grad_()
            losses = self._losses(output, usable(labels) if isinstance(labels, Tensor) else labels)
            if not isinstance(losses, Tensor) or losses.shape != output.shape[:1]:
                found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise InputError(
                    f"The loss must give one number for each of the {len(output)} samples, found {found}. "
                    "Use reduction='none', and take the mean over all axes but the first."
                )
            if not losses.requires_grad:
                raise InputError(
                    "The loss does not depend on the output for autograd, so its gradient would be zero. "
                    "Is there a detach, no_grad or argmax in it?"
                )
            (r,) = torch.autograd.grad(losses.sum(), output, create_graph=is_live)
        return r.to(J.dtype)

    def _losses(self, output: Tensor, labels: Any) -> Any:
        assert self.loss is not None
        try:
            return self.loss(output, labels)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"The loss failed on an output of shape {tuple(output.shape)} and labels "
                f"{getattr(labels, 'shape', labels)!r:.80} ({type(error).__name__}: {error}). It gets the "
                "labels as they are, and must return one number for each sample."
            ) from error

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, p={self.p:g}"


def check_order(p: float) -> float:
    if str(p) not in ("1", "1.0", "2", "2.0"):
        raise InputError(f"p={p!r}: choose 1 or 2, the norm of the gradient.")
    return float(p)


def check_output_of(J: Linearization, who: str) -> None:
    if not J.is_of_output:
        raise InputError(
            f"{who} needs the Jacobian of the model's output, {tuple(J.output.shape)}; this one belongs to "
            f"another tensor, {tuple(J.output_shape)}: leave out to= and project()."
        )


def dual(c: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """‖c‖_p of each sample, and its derivative in c."""
    if p == 1:
        return flat(c).abs().sum(1), c.sign()
    length = norms(c)
    return length, divided(c, length)
