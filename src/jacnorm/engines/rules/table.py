"""The table of rules. A rule says what one call of the model is at the recorded point: F, Fᵀ and what they
read.

    @rule("linear", is_layer=True)
    def linear_layer(x, weight, bias=None):
        return Call(
            push=lambda weight, t: F.linear(t, weight),
            pull=lambda weight, c: c @ weight,
            reads=(weight,),
            terms=lambda weight, c, t: [outer_product(c, t)],
        )

A rule is called with the arguments of the call. The first `data` of them may depend on the input (with
`data=LIST`, the items of the first one). `push` gets one tangent for each of these, None for those that do
not depend on it. `pull` returns one cotangent for each: a list, or just the tensor where there is one.

`reads` are the tensors that F depends on and that may learn: weights and activations. `push`, `pull` and
`terms` get their values first. `terms` returns the gradient of ⟨c, F(t)⟩ in each of them. Where a rule has
no `terms`, autograd differentiates `push`, which must then be made of differentiable operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

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
    """Autograd gives Jᵀu of a call without a rule, and not its J v; the text says of which."""


@dataclass(slots=True)
class Call:
    """A call y = f(x, …) at the recorded point, as a linear map.

    push
        F = Df(x): takes the values of `reads`, then a tangent for each argument that may depend on the
        model's input (None where it does not).
    pull
        Fᵀ: takes the values of `reads` and a cotangent, which has the shape of y.
    reads
        Tensors that both depend on and that may learn: weights, x itself, y.
    terms
        The gradient of ⟨c, F(t)⟩ in each of `reads`: takes their values, c, and the tangents. Without it,
        autograd differentiates `push`.
    meet
        `push` and `terms` at once, where that is cheaper.
    y
        The result, where it was computed on the way.
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
    is_layer: bool = False  # the second argument is a weight: the layer is a W^l of the paper
    runs: bool = False  # apply computes y itself
    inplace: bool = False  # apply takes `inplace` itself
    like: bool = False  # another tensor is only asked for its shape or dtype
    product: bool = False  # apply is told first which of its data depend on the input
    parts: bool = False  # y is a tuple of tensors, and so are its tangents
    of_complex: bool = False  # it holds for complex numbers, too (see `fourier.py`)
    composed: bool = False  # apply is the call itself, made of others, which are recorded instead
    own: Any = None  # the user's function that it is for


class Borrowed:
    """An activation that a rule reads again later, without a copy of its own.

    A model that writes into it first cannot be differentiated by autograd either (see `engines/reads.py`).
    """

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach()
        self.version = version(tensor)


RULES: dict[str, Rule] = {}


def rule(*names: str, **options: Any) -> Decorator:
    """Enter a function into the table under these names."""

    def register(apply: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert name not in RULES, f"two rules for {name}"
            RULES[name] = Rule(apply, **options)
        return apply

    return register


def scaled_by(factor: Tensor, y: Any = MISSING) -> Call:
    """An elementwise product with a constant, which is its own transpose."""

    def scale(v: Tensor) -> Tensor:
        return v * factor

    return Call(scale, scale, y=y)
