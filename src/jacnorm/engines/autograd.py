"""Jacobian products of any differentiable model, from the graph that autograd recorded.

Jᵀu is back-propagation of u. J v is the paper's flipped graph (section 3.2, appendix C): Jᵀu is linear in
u, so differentiating ⟨Jᵀu, v⟩ with respect to u gives J v.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import UnsupportedModelError
from .batchnorm import Gate


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

    def jvp(self, v: Tensor) -> Tensor:
        self._refuse()
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
        raise UnsupportedModelError(
            f"PyTorch cannot take this derivative of the model: {str(error).rstrip('.')}. J v, and the "
            "gradient of Jᵀu, need second derivatives: replace the layer that the message names by one that "
            "has them."
        ) from error
