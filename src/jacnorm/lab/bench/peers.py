"""The ways of other libraries, written out. Each makes (x, index) -> (output, σ of each sample)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ... import linearize
from ...estimators.operator import flat, normalized, norms

Estimate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _run(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The input as a leaf, and the output."""
    x = x.detach().requires_grad_()
    with _written_out():
        return x, model(x)


def _written_out() -> AbstractContextManager[None]:
    """Attention without its fused kernel, which has neither forward nor second derivatives."""
    return sdpa_kernel(SDPBackend.MATH)


def frobenius(model: nn.Module) -> Estimate:
    """Hoffman et al.'s own code: ‖Jᵀu‖² for a random u, through autograd twice. (σ is n_out ‖Jᵀu‖².)"""

    def estimate(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        x, output = _run(model, x)
        u = normalized(torch.randn_like(output))
        (pulled,) = torch.autograd.grad(output, x, u, create_graph=True)
        return output, output.shape[1] * flat(pulled).square().sum(1)

    return estimate


def push(model: nn.Module, precision: torch.dtype | None = None) -> Estimate:
    """J v beside the loss, without gradients of J v, as flow models need it. (This one is ours.)"""
    J = None  # kept until the next step replaces it, as in a usual training loop

    def estimate(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal J
        J = linearize(model, x, precision=precision)
        with torch.no_grad():
            return J.output, 0 * norms(J.jvp(x))

    return estimate


def push_by_torch_func(model: nn.Module) -> Estimate:
    def estimate(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        with _written_out():
            found: Any = torch.func.jvp(model, (x,), (x,))
        return found[0], 0 * norms(found[1].detach())

    return estimate


def unrolled(model: nn.Module) -> Estimate:
    """The paper's Algorithm 1 with autograd following both modes."""

    def estimate(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        J = linearize(model, x)
        v = normalized(torch.randn_like(x))
        return J.output, norms(J.vjp(normalized(J.jvp(v))))

    return estimate


def double_backward(model: nn.Module, rounds: int) -> Estimate:
    """Power iteration on JᵀJ by autograd alone. Gradients go through every round, as in imaging codes."""

    def estimate(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        x, output = _run(model, x)
        v = normalized(torch.randn_like(x))
        for _ in range(rounds):
            v = normalized(v)
            dummy = torch.ones_like(output, requires_grad=True)
            (pulled,) = torch.autograd.grad(output, x, dummy, create_graph=True)
            (pushed,) = torch.autograd.grad(pulled, dummy, v, create_graph=True)
            (v,) = torch.autograd.grad(output, x, normalized(pushed), create_graph=True)
        return output, norms(v)

    return estimate


def rows_and_svd(model: nn.Module) -> Estimate:
    """The paper's analytical norm (appendix A.3): one backward pass per output, and PyTorch's SVD."""

    def estimate(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        x, output = _run(model, x)
        scores = output.sum(0)
        rows = [flat(torch.autograd.grad(score, x, create_graph=True)[0]) for score in scores]
        return output, torch.linalg.svdvals(torch.stack(rows, 1))[:, 0]

    return estimate


def dual_numbers(model: nn.Module) -> Estimate:
    """‖J v‖ by PyTorch's forward-mode AD; v comes from one backward pass of a random u."""

    def estimate(x: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        x, output = _run(model, x)
        u = normalized(torch.randn_like(output))
        (pulled,) = torch.autograd.grad(output, x, u, retain_graph=True)
        with fwAD.dual_level(), _written_out():
            tangent = fwAD.unpack_dual(model(fwAD.make_dual(x.detach(), normalized(pulled)))).tangent
        return output, norms(tangent)

    return estimate
