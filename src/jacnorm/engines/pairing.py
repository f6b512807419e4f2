"""The gradient of uᵀJ v in all parameters, with u and v held fixed: one sweep each way, no double backward.

Let t be the tangents of J v and c the cotangents of Jᵀu. Each call y = f(a; θ) contributes to uᵀJ v through
⟨c, F(t)⟩ with F = Df(a), and

    d(uᵀJ v)/dθ = ∂/∂θ ⟨c, F(t)⟩        for a linear layer the outer product c ⊗ t
    d(uᵀJ v)/da = ∂/∂a ⟨c, F(t)⟩        zero for piecewise linear calls, local and cheap for smooth ones

The second line is a gradient that arrives at the activation a. The loss's backward pass carries it further.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ..errors import InputError
from ..pytorch.tracing import inside_torch_func, tracing
from .by_autograd import gradient
from .followed import CallByCall
from .tape import Parts, Slot, Step, Tape

OUTPUT = -1 << 62  # a number that is not used for reads
Again = Callable[[], Tensor]


class Pairing:
    """Collects the gradient over two sweeps. The first leaves its vectors here. In the second, c and t of
    each call meet, and its terms are computed."""

    def __init__(self) -> None:
        self.left: dict[Slot, Any] = {}
        self._first: Literal["push", "pull"] | None = None
        self._terms: dict[int, tuple[Tensor, Tensor]] = {}  # where each goes, by its number there
        self._later: list[tuple[Tensor, Tensor]] = []  # F(t) with a graph, and its cotangent
        self._beside: dict[object, Pairing] = {}

    def beside(self, who: object) -> Pairing:
        """The pairing for a second pair that `who` sweeps at the same time, such as in the other direction.
        Its terms are added to these. Each operator `who` has its own."""
        if who not in self._beside:
            self._beside[who] = other = Pairing()
            other._terms, other._later = self._terms, self._later
        return self._beside[who]

    def push(self, step: Step, values: list[Tensor], ts: list[Any]) -> Any:
        read = [values[k] for k in step.reads]
        if not step.learns:
            return step.push(*read, *ts)
        self._first = self._first or "push"
        if self._first == "push":
            self.left[step.target] = ts
            return step.push(*read, *ts)
        c = self.left.pop(step.target, None)
        if c is None:
            return step.push(*read, *ts)
        if step.by_autograd is not None:
            y, terms = step.by_autograd.meet(c, ts)
            self._add(step, values, terms)
            return y
        if step.meet is not None and not _is_half(c):
            y, terms = step.meet(*read, c, *ts)
            self._add(step, values, terms)
            return y
        if step.terms is None:
            return self._leave_to_autograd(step, values, c, ts)
        y = step.push(*read, *ts)
        self._meet(step, values, read, c, ts)
        return y

    def pull(self, step: Step, values: list[Tensor], c: Any) -> Sequence[Any]:
        read = [values[k] for k in step.reads]
        if not step.learns:
            return step.pull(*read, c)
        self._first = self._first or "pull"
        if self._first == "pull":
            if step.by_autograd is not None:
                c, pulled = step.by_autograd.pull_for_meeting(c)
            else:
                pulled = step.pull(*read, c)
            self.left[step.target] = c
            return pulled
        ts = self.left.pop(step.target)
        if step.by_autograd is not None:
            pulled, terms = step.by_autograd.pull_and_meet(c, ts)
            self._add(step, values, terms)
            return pulled
        if step.terms is None:
            self._leave_to_autograd(step, values, c, ts)
        else:
            self._meet(step, values, read, c, ts)
        return step.pull(*read, c)

    def _meet(self, step: Step, values: list[Tensor], read: list[Tensor], c: Any, ts: list[Any]) -> None:
        assert step.terms is not None
        if _is_half(c):  # products of small numbers would underflow
            mine, c, ts = tree_map(lambda t: t.float() if isinstance(t, Tensor) else t, (read, c, ts))
            self._add(step, values, step.terms(*mine, c, *ts))
        else:
            self._add(step, values, step.terms(*read, c, *ts))

    def _add(self, step: Step, values: Sequence[Tensor], terms: Sequence[Tensor | None]) -> None:
        """`terms`: the gradients in what the step reads."""
        if step.by_autograd is None:
            places: Any = [(k, values[k], v) for k, v in zip(step.homes or step.reads, terms, strict=True)]
        else:
            places = [(id(e), e, term) for e, term in zip(step.edges, terms, strict=True) if e is not None]
        found = self._terms
        for k, edge, term in places:
            if term is not None and edge.requires_grad:
                term = term.to(edge.dtype)
                found[k] = (edge, found[k][1] + term) if k in found else (edge, term)

    def _leave_to_autograd(self, step: Step, values: list[Tensor], c: Any, ts: list[Any]) -> Any:
        """Differentiate F(t) by autograd, within this call only."""
        read = [values[k] for k in step.reads]
        if tracing() or inside_torch_func():  # gradients cannot be computed now; backward() will do it
            with torch.enable_grad():
                y = step.push(*read, *ts)
            self._later += [(y, c)] if y.requires_grad else []
            return y.detach()
        own = [t.detach().requires_grad_() if t.requires_grad else t for t in read]
        with torch.enable_grad():
            y = step.push(*own, *ts)
        found = iter(torch.autograd.grad(y, [t for t in own if t.requires_grad], c, allow_unused=True))
        self._add(step, values, [next(found) if t.requires_grad else None for t in read])
        return y.detach()

    def handed_over(self, value: Tensor, factor: float, again: Again | None = None) -> Tensor:
        """The value, with the gradient of factor · uᵀJ v. `again` computes the value in a way that can be
        differentiated any number of times."""
        edges, terms = [e for e, _ in self._terms.values()], [t for _, t in self._terms.values()]
        ys, cs = [y for y, _ in self._later], [c for _, c in self._later]
        if not edges and not ys:
            return value
        function = _HandedOverAnywhere if tracing() or inside_torch_func() else _HandedOver
        handed: Tensor = function.apply(value, factor, again, *edges, *ys, *terms, *cs)
        return handed

    def pass_through(self, output: Tensor) -> None:
        """Add a zero gradient at the output. Sharded modules prepare their weights when gradients arrive."""
        if output.requires_grad:
            self._terms.setdefault(OUTPUT, (output, torch.zeros_like(output)))

    def at(self, leaves: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradient of uᵀJ v in leaves of the graph that the calls were recorded in, now."""
        arrived = {id(edge): term for edge, term in self._terms.values() if edge.is_leaf}
        inside = [(get_gradient_edge(edge), term) for edge, term in self._terms.values() if not edge.is_leaf]
        found: Sequence[Tensor | None] = [None] * len(leaves)
        if inside:
            found = gradient([edge for edge, _ in inside], leaves, [t for _, t in inside], create_graph=False)
        own = [arrived.get(id(leaf)) for leaf in leaves]
        return [b if a is None else a if b is None else a + b for a, b in zip(own, found, strict=True)]

    def gradients(self, places: Sequence[int]) -> list[Tensor | None]:
        """The gradient of uᵀJ v at each place, by its number, now."""
        return [self._terms[k][1] if k in self._terms else None for k in places]

    def after(self, first: Literal["push", "pull"], left: dict[Slot, Any]) -> Pairing:
        self._first, self.left = first, left
        return self


def _is_half(c: Any) -> bool:
    if isinstance(c, Parts):
        return any(map(_is_half, c))
    return isinstance(c, Tensor) and c.dtype == torch.float16


class _HandedOver(torch.autograd.Function):
    """The value. Its gradient at each edge is the term found for that edge, times the factor."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: float, again: Again | None, *tensors: Tensor) -> Tensor:
        _HandedOver.keep(ctx, factor, again, tensors)
        return value.clone()

    @staticmethod
    def keep(ctx: Any, factor: float, again: Again | None, tensors: Sequence[Tensor]) -> None:
        ctx.factor, ctx.count = factor, len(tensors) // 2
        ctx.edges = tensors[: ctx.count] if again else ()
        ctx.save_for_backward(*tensors[ctx.count :], *_carriers(again))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        nothing = [None] * ctx.count
        if torch.is_grad_enabled() and not (tracing() or inside_torch_func()):
            again = _carried(ctx.saved_tensors[ctx.count :])
            if again is None:
                refuse_second_derivatives()
            found = torch.autograd.grad(again(), ctx.edges, gradient, create_graph=True, allow_unused=True)
            return None, None, None, *found, *nothing
        terms = ctx.saved_tensors[: ctx.count]
        if not _is_one(ctx.factor, gradient):
            scale = ctx.factor * gradient
            terms = [t * scale for t in terms]
        return None, None, None, *terms, *nothing


def _carriers(again: Again | None) -> list[Tensor]:
    """A tensor that carries `again`, and with it all of J. It goes when backward() frees the graph."""
    if again is None or tracing() or inside_torch_func():
        return []
    carrier: Any = torch.empty(0, device="cpu")
    carrier.again = again
    return [carrier]


def _carried(carriers: Sequence[Any]) -> Any:
    return carriers[0].again if carriers else None


class _HandedOverAnywhere(_HandedOver):
    """The same in the form that torch.func and torch.compile need. It is slower to call."""

    @staticmethod
    def forward(value: Tensor, factor: float, again: Again | None, *tensors: Tensor) -> Tensor:  # type: ignore[override]
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        _, factor, again, *tensors = inputs
        _HandedOver.keep(ctx, factor, again, tensors)


def _is_one(factor: float, gradient: Tensor) -> bool:
    """Whether the product is known to be 1. It often is, because penalties put their weight into the sweeps.
    (On other devices than the CPU, reading the value would take long.)"""
    if factor != 1 or tracing() or inside_torch_func() or gradient.device.type != "cpu":
        return False
    return float(gradient) == 1.0


def split_factor(factor: float, J: Any) -> tuple[float, float]:
    """The part of a factor for the second sweep, and the part for backward(). All of it goes into the sweep,
    unless numbers would underflow in half precision."""
    return (1.0, factor) if J.is_half else (factor, 1.0)


def refuse_second_derivatives() -> None:
    raise InputError(
        "The gradient of a penalty cannot be differentiated again: call backward() and "
        "autograd.grad() without "
        "create_graph=True. (Singular vectors are held fixed, and terms are found without a graph. Only "
        "FrobeniusPenalty on a piecewise linear network has second derivatives.)"
    )


def differentiable_once(value: Tensor) -> Tensor:
    """The value of a norm whose singular vectors were held fixed.

    By the envelope theorem its first derivative is right, but its second derivative would be wrong, so it
    raises an error. (torch.func always asks for a graph, so no error is raised there.)
    """
    return value if tracing() or inside_torch_func() or not value.requires_grad else _Once.apply(value)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not tracing():
            refuse_second_derivatives()
        return gradient


def product(tape: Tape, direction: Literal["push", "pull"], w: Tensor) -> Tensor | None:
    """J v or Jᵀu, differentiable in w and in all parameters."""
    if tape.is_piecewise_linear or not torch.is_grad_enabled():  # autograd follows it as it is
        return tape.jvp(w) if direction == "push" else tape.vjp(w)
    if tracing() or inside_torch_func():
        return tape.jvp(w, CallByCall()) if direction == "push" else tape.vjp(w, CallByCall())
    edges = tape.edges()
    result: Tensor | None = _Product.apply(w, tape, direction, list(edges), *edges.values())
    return result


class _Product(torch.autograd.Function):
    """One sweep. Its backward is the sweep in the other direction, with a pairing."""

    @staticmethod
    def forward(
        ctx: Any, w: Tensor, tape: Tape, direction: Literal["push", "pull"], places: list[int], *_: Tensor
    ) -> Any:
        pairing = Pairing()
        result = tape.jvp(w, pairing) if direction == "push" else tape.vjp(w, pairing)
        left, ctx.spec = tree_flatten(pairing.left)
        ctx.save_for_backward(*[t if isinstance(t, Tensor) else None for t in left])
        ctx.tape, ctx.direction, ctx.places = tape, direction, places
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise InputError(
                "Products with the Jacobian of a smooth network can be differentiated once: call backward() "
                "and autograd.grad() without create_graph=True."
            )
        left = tree_unflatten(list(ctx.saved_tensors), ctx.spec)
        pairing = Pairing().after(ctx.direction, left)
        tape: Tape = ctx.tape
        back = tape.vjp(gradient, pairing) if ctx.direction == "push" else tape.jvp(gradient, pairing)
        return back, None, None, None, *pairing.gradients(ctx.places)
