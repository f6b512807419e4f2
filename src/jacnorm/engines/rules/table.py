"""The table of rules. A rule gives the linear map of one call at the recorded point: F, Fᵀ, and the tensors
that they read.

    @rule("linear", is_layer=True)
    def linear_layer(x, weight, bias=None):
        return Call(
            push=lambda weight, t: F.linear(t, weight),
            pull=lambda weight, c: c @ weight,
            reads=(weight,),
            terms=lambda weight, c, t: [outer_product(c, t)],
        )

A rule is called with the arguments of the call. The first `data` arguments may depend on the input (with
`data=LIST`, the items of the first argument). `push` gets one tangent per such argument, None if the argument
does not depend on the input. `pull` returns one cotangent per such argument: a list, or just the tensor if
there is only one.

`reads` are the weights and activations on which F depends. `push`, `pull` and `terms` get their values first.
`terms` returns the gradient of ⟨c, F(t)⟩ in each of them. If a rule has no `terms`, autograd differentiates
`push`, which must then consist of differentiable operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...pytorch.tracing import tracing
from ..tape import version

LIST = -1  # the items of the first argument
REST = -2  # all after the first argument
MISSING: Any = object()

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class NoRule(Exception):
    """No rule fits this call; the text says why."""


class NotRecorded(Exception):
    """The whole model must be one step by autograd; the text says why."""


class OneWay(NotRecorded):
    """Autograd gives Jᵀu of a call without a rule, but not J v; the text names the call."""


@dataclass(slots=True)
class Call:
    """The linear map F = Df(x) of a call y = f(x, …) at the recorded point. A rule returns it.

    push
        Computes F(t). It takes the values of `reads`, then one tangent per argument that may depend on the
        model's input, with the shape of the argument (None if it does not depend on it). It returns a tensor
        of the shape of y.
    pull
        Computes Fᵀ(c). It takes the values of `reads` and a cotangent c of the shape of y. It returns one
        cotangent per such argument, with the shape of the argument: a list, or a tensor if there is only one.
    reads
        The tensors on which both depend and that may have a gradient: weights, x itself, y.
    terms
        Computes the gradient of ⟨c, F(t)⟩ in each of `reads`. It takes their values, c, and the tangents, and
        returns a list. Without it, autograd differentiates `push`.
    meet
        Computes `push` and `terms` together, as a pair, if that is cheaper.
    y
        The result of the call, if the rule has computed it.
    """

    push: Callable[..., Any]
    pull: Callable[..., Any]
    reads: Sequence[Tensor] = ()
    terms: Callable[..., Sequence[Tensor | None]] | None = None
    meet: Callable[..., Any] | None = None
    y: Any = MISSING
    borrows: Borrowed | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    apply: Callable[..., Call]
    data: int = 1
    is_layer: bool = False  # the second argument is a weight, and the layer is a W^l of the paper
    runs: bool = False  # apply computes y itself
    inplace: bool = False  # apply takes `inplace` itself
    like: bool = False  # it uses only the shape or dtype of another tensor
    product: bool = False  # the first argument of apply says which of its data depend on the input
    parts: bool = False  # y is a tuple of tensors, and so are its tangents
    of_complex: bool = False  # it also holds for complex numbers (see `fourier.py`)
    composed: bool = False  # apply makes the call out of other calls, which are recorded instead
    own: Any = None  # the user's function to which it belongs


class Borrowed:
    """An activation that a rule reads again later, without a copy of its own.

    If the model changes it in place before that, autograd cannot differentiate either (`engines/reads.py`).
    """

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach()
        self.version = version(tensor)
        self._low: Tensor | None = None

    def like(self, v: Tensor) -> Tensor:
        """The activation in the precision of a sweep."""
        if v.dtype == self.tensor.dtype:
            return self.tensor
        if tracing():
            return self.tensor.to(v.dtype)
        if self._low is None or self._low.dtype != v.dtype:
            self._low = self.tensor.to(v.dtype)
        return self._low


RULES: dict[str, Rule] = {}


def rule(*names: str, **options: Any) -> Decorator:
    """Register a function in the table under these names."""

    def register(apply: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = Rule(apply, **options)
        return apply

    return register


def scaled_by(factor: Tensor, y: Any = MISSING) -> Call:
    """An elementwise product with a constant, which is its own transpose."""

    def scale(v: Tensor) -> Tensor:
        return v * (factor if factor.dtype == torch.bool else factor.to(v.dtype))

    return Call(scale, scale, y=y)
