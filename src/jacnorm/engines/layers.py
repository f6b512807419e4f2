"""The linear and convolution layers that a model calls: the paper's W^l."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .calls import canonical_name, one_way
from .rules import RULES, Call, NoRule


@dataclass(slots=True)
class Layer:
    """One use of a weight, as an operator on inputs of the size that it had."""

    name: str
    weight: Tensor
    input_shape: torch.Size  # of a sample, or of one of the tokens that all have the same norm
    call: Call

    def forward(self, v: Tensor) -> Tensor:
        y: Tensor = self.call.push(self.weight, v, None)
        return y

    def backward(self, u: Tensor) -> Tensor:
        x: Tensor = self.call.pull(self.weight, u)[0]
        return x


def is_layer(func: Any, args: tuple[Any, ...]) -> bool:
    rule = RULES.get(canonical_name(func, args)[0])
    return rule is not None and rule.is_layer


def layer_called(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layer | None:
    """The layer of a call that is not recorded, or None if the call is not a layer."""
    args, kwargs = one_way(args, kwargs)
    name, _ = canonical_name(func, args)
    with suppress(NoRule, TypeError):  # its arguments are not those of a layer
        return layer_of(name, RULES[name].apply((True, False), *args, **kwargs), *args[:2], **kwargs)
    return None


def layer_of(name: str, call: Call, x: Tensor, weight: Tensor, **_: Any) -> Layer:
    """The layer, from the `Call` that its rule returned."""
    return Layer(name, weight, x.shape[-1:] if name == "linear" else x.shape[1:], call)
