"""The recorded network: a list of linear steps, swept forwards for J v and backwards for Jᵀ u."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..tracing import tracing

Slot = int  # names one activation of the recorded run
# Calls that may return their argument as it is; then there is a step in one record and none in another.
HANDS_ON = frozenset(
    [
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout"),
        *("feature_alpha_dropout", "contiguous", "flatten", "positive", "to", "type", "type_as"),
        *("float", "double", "half", "bfloat16", "cpu", "cuda"),
    ]
)
Plan = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(slots=True)
class Step:
    """One layer at the recorded point: target = F(sources), and its transpose.

    `forward` takes a tangent per source (None where the layer's argument does not depend on x);
    `backward` returns a cotangent per source. Where `learns` is False no parameter has a part in them.
    """

    name: str
    sources: tuple[Slot | None, ...]
    target: Slot
    forward: Callable[..., Tensor]
    backward: Callable[[Tensor], Sequence[Tensor | None]]
    learns: bool


class Tape:
    """All steps from the input slot to the output slot, in the order they ran."""

    def __init__(self, steps: Sequence[Step], source: Slot, target: Slot):
        self.source, self.target = source, target
        self.steps = _reaching(steps, target)
        self._last_use: dict[Slot | None, int] = {}  # for forward mode, on first use

    @property
    def plan(self) -> Plan:
        """What each step is called, and which others it follows; −1 is the input, −2 a constant."""
        made: dict[Slot | None, int] = {None: -2, self.source: -1}
        plan: list[tuple[str, tuple[int, ...]]] = []
        for step in self.steps:
            before = tuple(made[s] for s in step.sources)
            made[step.target] = before[0] if step.name in HANDS_ON else len(plan)
            if step.name not in HANDS_ON:
                plan.append((step.name, before))
        return tuple(plan)

    def jvp(self, v: Tensor, weighted: dict[Slot, Tensor] | None = None) -> Tensor:
        """Forward mode: W_R v of the paper.

        `weighted` gets F(tangent) of each step that learns, and the graph is cut after it.
        """
        if not self._last_use:
            self._last_use = {s: i for i, step in enumerate(self.steps) for s in step.sources}
        tangents: dict[Slot | None, Tensor | None] = {self.source: v, None: None}
        for i, step in enumerate(self.steps):
            y = step.forward(*[tangents[s] for s in step.sources])
            if weighted is not None and y.requires_grad:
                assert step.learns, step.name
                weighted[step.target] = y
                y = y.detach()
            tangents[step.target] = y
            for s in set(step.sources) - {None, self.target}:
                if self._last_use[s] == i:
                    del tangents[s]
        result = tangents[self.target]
        assert result is not None
        return result

    def vjp(self, u: Tensor, kept: dict[Slot, Tensor] | None = None) -> Tensor | None:
        """Backward mode: W_Rᵀ u, or None where no step leads from the input to the output.

        `kept` gets what arrives at each step that learns.
        """
        cotangents: dict[Slot, Tensor] = {self.target: u}
        for step in reversed(self.steps):
            arrived = cotangents.pop(step.target, None)
            if arrived is None:
                continue
            if kept is not None and step.learns:
                kept[step.target] = arrived
            for s, cotangent in zip(step.sources, step.backward(arrived), strict=True):
                if s is not None and cotangent is not None:
                    cotangents[s] = cotangents[s] + cotangent if s in cotangents else cotangent
        return cotangents.get(self.source)


def _reaching(steps: Sequence[Step], target: Slot) -> list[Step]:
    """The steps that the output depends on: branches that lead nowhere are not swept."""
    needed, kept = {target}, []
    for step in reversed(steps):
        if step.target in needed:
            needed.update(s for s in step.sources if s is not None)
            kept.append(step)
    return kept[::-1]


def sum_to(u: Tensor, shape: torch.Size) -> Tensor:
    """Transpose of broadcasting from `shape`."""
    return u if u.shape == shape else u.sum_to_size(shape)


def version(t: Tensor) -> int:
    """How often t was written into. (Not known while dynamo traces, where an eager run has looked before,
    nor of tensors made in inference mode.)"""
    return 0 if tracing() or t.is_inference() else t._version
