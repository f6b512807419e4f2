"""Jacobian products of any differentiable model, from the graph that autograd recorded.

Jᵀu is back-propagation of u. J v is the paper's flipped graph (section 3.2, appendix C): Jᵀu is linear in
u, so differentiating ⟨Jᵀu, v⟩ with respect to u gives J v.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

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

    def is_cut(self) -> bool:
        """Whether nothing leads from x to the output."""
        with torch.no_grad():
            return self.vjp(torch.zeros_like(self._output)) is None

    def jvp(self, v: Tensor) -> Tensor:
        self._refuse()
        if torch.is_grad_enabled():
            _refuse_fused_norms(self._output)
        u, pulled = self._flip()
        if pulled is None or not pulled.requires_grad:
            return torch.zeros_like(self._output)
        (result,) = _gradient(pulled, u, v, create_graph=torch.is_grad_enabled())
        return torch.zeros_like(self._output) if result is None else result

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise UnsupportedModelError(self.refusal)

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


def custom_functions(output: Tensor) -> dict[Any, Any]:
    """The user's own autograd functions in the graph, each with one of its nodes."""
    own: list[Any] = [node for node in _nodes(output) if isinstance(node, BackwardCFunction)]
    found = {node._forward_cls: node for node in own}
    return {f: node for f, node in found.items() if not f.__module__.startswith("jacnorm.")}


def _refuse_fused_norms(output: Tensor) -> None:
    """Where they are called so that nobody could take them apart (see decompose.py)."""
    for node in _nodes(output):
        name = node.name()
        if name.startswith(FUSED_NORMS) and getattr(node, "_saved_training", True):
            raise UnsupportedModelError(
                f"The model hides a fused norm ({name.removesuffix('Backward0')}) in torch.jit, torch.func, "
                "torch.export or torch.ops. The gradient of J v needs its third derivative, which PyTorch "
                "gets wrong. Call F.layer_norm and its like directly."
            )


def _nodes(output: Tensor) -> Iterator[Any]:
    seen: set[Any] = set()
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [parent for parent, _ in node.next_functions]


def _gradient(y: Tensor, x: Tensor, u: Tensor, create_graph: bool) -> tuple[Tensor | None]:
    try:
        return torch.autograd.grad(  # type: ignore[return-value]
            y, x, u, create_graph=create_graph, retain_graph=True, allow_unused=True
        )
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
