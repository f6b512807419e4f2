"""Jacobian products of any differentiable model, from the graph that autograd recorded.

Jᵀu is back-propagation of u. J v is the paper's flipped graph (section 3.2, appendix C): Jᵀu is linear in
u, so differentiating ⟨Jᵀu, v⟩ with respect to u gives J v.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import CheckpointError

from ..errors import UnsupportedModelError
from .batchnorm import Gate

FUSED_NORMS = ("NativeLayerNorm", "NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")


class Graph:
    """The recorded graph from x to output, with batch norm's statistics gated."""

    def __init__(self, x: Tensor, output: Tensor, gate: Gate):
        self._x, self._output, self._gate = x, output, gate
        self.refusal: str | None = None  # why there is nothing but the value of Jᵀu
        self._flipped: tuple[Tensor, Tensor | None] | None = None

    def vjp(self, u: Tensor) -> Tensor | None:
        if torch.is_grad_enabled():
            self._refuse()
        return self._pull(u, create_graph=torch.is_grad_enabled())

    @cached_property
    def nodes(self) -> list[Any]:
        """Those that lead from x to the output; none if nothing does."""
        users: dict[Any, list[Any]] = {}
        waiting = [self._output.grad_fn]
        while waiting:
            node = waiting.pop()
            for parent, _ in () if node is None else node.next_functions:
                if parent not in users:
                    waiting.append(parent)
                users.setdefault(parent, []).append(node)
        origin = get_gradient_edge(self._x).node
        found, waiting = dict.fromkeys(users.get(origin, ())), list(users.get(origin, ()))
        while waiting:
            new = [user for user in users.get(waiting.pop(), ()) if user not in found]
            found.update(dict.fromkeys(new))
            waiting += new
        return list(found)

    @property
    def custom_functions(self) -> dict[Any, list[Any]]:
        """The user's own autograd functions, each with its nodes."""
        found: dict[Any, list[Any]] = {}
        for node in self.nodes:
            if isinstance(node, BackwardCFunction):
                function: Any = getattr(node, "_forward_cls")  # noqa: B009 (mypy does not know it)
                if not function.__module__.startswith("jacnorm."):
                    found.setdefault(function, []).append(node)
        return found

    def free(self) -> None:
        """The graph of the transpose, which only J v needs."""
        self._flipped = None

    def jvp(self, v: Tensor) -> Tensor:
        self._refuse()
        if torch.is_grad_enabled():
            self._refuse_fused_norms()
        u, pulled = self._flip()
        if pulled is None or not pulled.requires_grad:
            return torch.zeros_like(self._output)
        (result,) = _gradient(pulled, u, v, create_graph=torch.is_grad_enabled())
        return torch.zeros_like(self._output) if result is None else result

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise UnsupportedModelError(self.refusal)

    def _refuse_fused_norms(self) -> None:
        """Where they are called so that nobody could take them apart (see decompose.py)."""
        for node in self.nodes:
            if node.name().startswith(FUSED_NORMS) and getattr(node, "_saved_training", True):
                raise UnsupportedModelError(
                    f"The model hides a fused norm ({node.name().removesuffix('Backward0')}) in torch.jit, "
                    "torch.func, torch.export, torch.ops or activation checkpointing. The gradient of J v "
                    "needs its third derivative, which PyTorch gets wrong. Call F.layer_norm and its like "
                    "directly."
                )

    def _flip(self) -> tuple[Tensor, Tensor | None]:
        if self._flipped is None:
            with torch.enable_grad():
                u = torch.zeros_like(self._output).requires_grad_()
                pulled = self._pull(u, create_graph=True)
            self._flipped = u, pulled
        return self._flipped

    def _pull(self, u: Tensor, create_graph: bool) -> Tensor | None:
        if not self._output.requires_grad:
            return None
        with self._gate:
            (result,) = _gradient(self._output, self._x, u, create_graph)
        return result


def _gradient(y: Tensor, x: Tensor, u: Tensor, create_graph: bool) -> tuple[Tensor | None]:
    try:
        return torch.autograd.grad(  # type: ignore[return-value]
            y, x, u, create_graph=create_graph, retain_graph=True, allow_unused=True
        )
    except torch.OutOfMemoryError:
        raise
    except CheckpointError as error:
        raise UnsupportedModelError(
            "What activation checkpointing recomputes is not what the model computed. Attention is the usual "
            "reason: the second time it runs on a fused kernel, which has no second derivative. Run the "
            "whole step, backward() too, inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or leave "
            f"attention out of the checkpointed part. ({str(error).splitlines()[0]})"
        ) from error
    except RuntimeError as error:
        if "second time" in str(error):
            raise UnsupportedModelError(
                "The graph of this linearization was freed by backward(). Take all products before, call "
                "backward(retain_graph=True), or linearize again."
            ) from error
        if "inplace operation" in str(error):
            raise UnsupportedModelError(
                f"The model writes into a tensor that its derivative needs: {error}"
            ) from error
        raise UnsupportedModelError(
            f"PyTorch cannot take this derivative of the model: {str(error).rstrip('.')}. J v, and the "
            "gradient of Jᵀu, need second derivatives: replace the layer that the message names by one that "
            "has them."
        ) from error
