"""The recorded network: a list of linear steps, swept forwards for J v and backwards for Jᵀu."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

from ..errors import UnsupportedModelError
from ..pytorch.sharded import gathered
from ..pytorch.tracing import inside_torch_func, tracing

if TYPE_CHECKING:
    from .followed import CallByCall
    from .pairing import Pairing

Slot = int  # names one activation of the recorded run
# Calls that may return their argument unchanged. Then some records have a step for them, and others do not.
HANDS_ON = frozenset(
    [
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout"),
        *("feature_alpha_dropout", "contiguous", "flatten", "positive", "to", "type", "type_as"),
        *("float", "double", "half", "bfloat16", "cpu", "cuda"),
    ]
)
FREED = (
    "The graph of this linearization was freed by backward(), or a tensor that its derivative "
    "needs was written "
    "into. Take all products before backward(), call backward(retain_graph=True), or linearize again."
)
Plan = tuple[tuple[str, tuple[int, ...]], ...]
Way = tuple[tuple[Any, ...], ...]  # for each call: its name, the calls that it follows, the way inside it


@dataclass(slots=True)
class Step:
    """One call at the recorded point: target = F(sources), and its transpose.

    `push` takes the values of what it reads, then a tangent per source (None where that argument does not
    depend on x). `pull` takes the same values and a cotangent, and returns a cotangent per source. `terms`
    takes the values, a cotangent and the tangents, and returns the gradient of ⟨c, F(t)⟩ in each value.
    `learns` says whether any of these gradients is needed.
    """

    name: str
    sources: tuple[Slot | None, ...]
    target: Slot
    push: Callable[..., Any]
    pull: Callable[..., Sequence[Any]]
    learns: bool
    reads: tuple[int, ...] = ()  # positions in `Tape.values()`
    terms: Callable[..., Sequence[Tensor | None]] | None = None
    meet: Callable[..., Any] | None = None  # (F(t), terms) at once, if that is cheaper
    by_autograd: Any = None  # the graph of a call without a rule
    within: tuple[Any, ...] = ()  # sharded modules whose weights must be available
    edges: tuple[Tensor | None, ...] = ()  # for a call by autograd: where the gradients of its reads go
    homes: tuple[int, ...] = ()  # positions to which gradients go, if not to those that are read

    @property
    def way(self) -> tuple[Any, ...]:
        inside = () if self.by_autograd is None else self.by_autograd.way
        return (self.name, self.sources, inside) if inside else (self.name, self.sources)

    def edges_from(self, values: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        """Where the gradients of its reads go, each with a number. These are the values themselves, because
        they are part of the graph of the loss."""
        if self.by_autograd is not None:
            return [(id(e), e) for e in self.edges if e is not None]
        return [(k, values[k]) for k in self.homes or self.reads if values[k].requires_grad]


class Parts(tuple[Any, ...]):
    """The tangents (cotangents) of the results of a call with several results; None stands for zero."""

    def __add__(self, other: Any) -> Parts:
        return Parts(b if a is None else a if b is None else a + b for a, b in zip(self, other, strict=True))


register_pytree_node(Parts, lambda parts: (list(parts), None), lambda parts, _: Parts(parts))


class Kept:
    """Activations that sweeps read again. A node in the loss's graph holds them; they are freed with it."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._node: Any = None

    def hang_on(self, output: Tensor) -> Tensor:
        """The output, with a node behind it that keeps the tensors."""
        if not self.tensors or tracing() or inside_torch_func() or not output.requires_grad:
            return output
        hung: Tensor = _Keep.apply(output, *self.tensors)
        self.tensors, self._node = [], hung.grad_fn
        return hung

    def values(self) -> Sequence[Tensor]:
        return self.tensors if self._node is None else held_by(self._node)


def held_by(node: Any) -> Sequence[Tensor]:
    """The tensors that a node of the loss's graph keeps for products."""
    try:
        found: Sequence[Tensor] = node.saved_tensors
        return found
    except RuntimeError as error:
        raise UnsupportedModelError(FREED) from error


class _Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.count = len(tensors)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, *[None] * ctx.count


class Tape:
    """All steps from the input slot to the output slot, in the order they ran."""

    def __init__(
        self,
        steps: Sequence[Step],
        source: Slot,
        target: Slot,
        weights: Sequence[Tensor] = (),
        kept: Kept | None = None,
        *,
        whole: bool = False,
    ):
        self.source, self.target = source, target
        self.steps = _reaching(steps, target)
        self.whole = whole  # the model is a single step by autograd
        self._weights, self.kept = weights, kept or Kept()
        self._is_sharded = any(step.within for step in self.steps)
        self._fixed: dict[Slot | None, Any] = {}  # zero tangents of activations that are held fixed
        self._last_use: dict[Slot | None, int] = {}  # for forward mode, on first use
        self.way: Way = tuple([step.way for step in self.steps])  # through the model

    def values(self) -> list[Tensor]:
        """The tensors that steps read. Weights have the positions 0, 1, …, activations −1, −2, …"""
        return [*self._weights, *reversed(self.kept.values())]

    def edges(self) -> dict[int, Tensor]:
        """Where the gradients of uᵀJ v go, by number."""
        values, found = self.values(), dict[int, Tensor]()
        for step in self.steps:
            if step.learns:
                found.update(step.edges_from(values))
        return found

    def between(self, source: Slot, target: Slot, x: Tensor) -> Tape | None:
        """The steps from one activation to another, with all others held fixed; None if there is no path.

        x is a zero vector like the input. Sweeping it gives the shapes of activations that are held fixed.
        """
        reached, steps = {source}, list[Step]()
        for step in self.steps:
            if not reached.isdisjoint(step.sources):
                reached.add(step.target)
                steps.append(step)
        if target not in reached:
            return None
        part = Tape(steps, source, target, self._weights, self.kept)
        beside = {s for step in part.steps for s in step.sources if s not in reached and s is not None}
        if beside:
            tangents = {self.source: x, None: None, **self._fixed}
            for step in self._with_weights(self.steps):
                ts = [tangents[s] for s in step.sources]
                tangents[step.target] = step.push(*[self.values()[k] for k in step.reads], *ts)
            part._fixed = {s: tangents[s] for s in beside}
        return part

    @property
    def is_constant(self) -> bool:
        """Whether J is zero: no step leads to the output, and the output is not the input itself."""
        return not self.steps and self.source != self.target

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether no step reads an activation. Autograd can then differentiate sweeps any number of times."""
        return not any(step.by_autograd or any(i < 0 for i in step.reads) for step in self.steps)

    @property
    def plan(self) -> Plan:
        """The name of each step, and the steps that it follows. −1 is the input, −2 a constant."""
        made: dict[Slot | None, int] = {None: -2, self.source: -1}
        plan: list[tuple[str, tuple[int, ...]]] = []
        for step in self.steps:
            before = tuple(made[s] for s in step.sources)
            made[step.target] = before[0] if step.name in HANDS_ON else len(plan)
            if step.name not in HANDS_ON:
                plan.append((step.name, before))
        return tuple(plan)

    def _with_weights(self, steps: Iterable[Step]) -> Iterable[Step]:
        return gathered(steps) if self._is_sharded else steps

    def jvp(self, v: Tensor, pairing: Pairing | CallByCall | None = None) -> Tensor:
        """Forward mode: W_R v of the paper."""
        if not self._last_use:
            self._last_use = {s: i for i, step in enumerate(self.steps) for s in step.sources}
        values, last_use = self.values(), self._last_use
        tangents: dict[Slot | None, Any] = {self.source: v, None: None, **self._fixed}
        for i, step in enumerate(self._with_weights(self.steps)):
            ts = [tangents[s] for s in step.sources]
            if pairing is None:
                y = step.push(*[values[k] for k in step.reads], *ts)
            else:
                y = pairing.push(step, values, ts)
            tangents[step.target] = y
            for s in step.sources:
                if s is not None and last_use[s] == i and s != self.target:
                    tangents.pop(s, None)
        result = tangents[self.target]
        assert result is not None
        return result

    def vjp(self, u: Tensor, pairing: Pairing | CallByCall | None = None) -> Tensor | None:
        """Backward mode: W_Rᵀ u, or None where no step leads from the input to the output."""
        values = self.values()
        cotangents: dict[Slot, Any] = {self.target: u}
        for step in self._with_weights(reversed(self.steps)):
            c = cotangents.pop(step.target, None)
            if c is None:
                continue
            if pairing is None:
                cs = step.pull(*[values[k] for k in step.reads], c)
            else:
                cs = pairing.pull(step, values, c)
            for s, cotangent in zip(step.sources, cs, strict=True):
                if s is not None and cotangent is not None:
                    cotangents[s] = cotangents[s] + cotangent if s in cotangents else cotangent
        return cotangents.get(self.source)


def _reaching(steps: Sequence[Step], target: Slot) -> list[Step]:
    """The steps on which the output depends. Other branches are not swept."""
    needed: set[Slot | None] = {target}
    kept: list[Step] = []
    for step in reversed(steps):
        if step.target in needed:
            needed.update(step.sources)
            kept.append(step)
    return kept[::-1]


def sum_to(u: Tensor, shape: torch.Size) -> Tensor:
    """Transpose of broadcasting from `shape`."""
    return u if u.shape == shape else u.sum_to_size(shape)


def version(t: Tensor) -> int:
    """How often t was changed in place. (Unknown while dynamo traces, where an eager run has checked it
    before, and for tensors made in inference mode.)"""
    return 0 if tracing() or t.is_inference() else t._version
