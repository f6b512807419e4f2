"""The table of rules, and the four ways to write one.

linear
    F needs nothing recorded. The rule returns (F, Fᵀ), and the recorder calls the layer itself; or
    (F, Fᵀ, y) if it knows a faster way.
piecewise
    F depends on where x lies: masks, indices, scales. The rule runs the layer, keeps what it
    needs, and returns (y, F, Fᵀ).
multilinear
    A product of several factors, linear in each. The rule is told the position of the one factor
    that depends on the input and returns (F, Fᵀ) for it.
splitting
    One input, several outputs. The rule is given the outputs and returns (F, Fᵀ) for each.

    @linear("linear", weighted=True)
    def linear_layer(x, weight, bias=None):
        return (lambda v: F.linear(v, weight)), (lambda u: F.linear(u, weight.t()))

A rule is called with the layer's own arguments. The first `data` of them may depend on the input (with
`data=LIST`, the items of the first one). F gets one tangent for each, None for those that do not depend
on it, and Fᵀ returns one cotangent for each: a tuple, or just the tensor when there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ..tape import version

LIST = -1

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class NoRule(Exception):
    """This call is not (piecewise) linear in the input; the text says why."""


@dataclass(frozen=True, slots=True)
class Rule:
    kind: Literal["linear", "piecewise", "multilinear", "splitting"]
    apply: Callable[..., Any]
    data: int = 1
    weighted: bool = False  # the second argument is a weight: the layer is a W^l of the paper
    inplace: bool = False  # apply takes `inplace` itself
    like: bool = False  # another tensor is only asked for its shape or dtype
    borrows: bool = False  # F reads the layer's own output: apply returns (y, F, Fᵀ, Borrowed)


class Borrowed:
    """An activation that a rule reads again later, without a copy of its own.

    A model that writes into it first cannot be differentiated by autograd either (see `engines/reads.py`).
    """

    def __init__(self, tensor: Tensor):
        self.tensor = tensor.detach()
        self.version = version(tensor)


RULES: dict[str, Rule] = {}


def linear(*names: str, data: int = 1, weighted: bool = False, like: bool = False) -> Decorator:
    return lambda apply: _register(names, Rule("linear", apply, data, weighted, like=like))


def piecewise(*names: str, data: int = 1, inplace: bool = False, borrows: bool = False) -> Decorator:
    return lambda apply: _register(names, Rule("piecewise", apply, data, inplace=inplace, borrows=borrows))


def multilinear(*names: str) -> Decorator:
    return lambda apply: _register(names, Rule("multilinear", apply))


def splitting(*names: str) -> Decorator:
    return lambda apply: _register(names, Rule("splitting", apply))


def _register(names: tuple[str, ...], rule: Rule) -> Callable[..., Any]:
    for name in names:
        assert name not in RULES, f"two rules for {name}"
        RULES[name] = rule
    return rule.apply


def scaling(factor: Tensor) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """F and Fᵀ of an elementwise product, which is its own transpose."""
    return (lambda v: v * factor), (lambda u: u * factor)
