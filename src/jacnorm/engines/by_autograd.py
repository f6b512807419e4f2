"""Calls without a rule, and whole models: one step of the tape, by autograd.

The call runs on leaves of its own, so its graph is private: products fire no hook of the user, and free
nothing that the user needs. Jᵀu is back-propagation of u. J v is the paper's flipped graph (section 3.2,
appendix C): Jᵀu is linear in u, so differentiating ⟨Jᵀu, v⟩ with respect to u gives J v. Differentiating
⟨Jᵀu, v⟩ with respect to the tensors that the call reads gives the terms of the penalty's gradient. So only
this call is differentiated twice, and nothing is differentiated three times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointError

from ..errors import UnsupportedModelError
from .batchnorm import Gate
from .tape import FREED, Parts, held_by


class ByAutograd:
    """The graph from `leaves` to `ys`. Leaves are all tensors with a derivative; some depend on the input.

    It refers to them by handles that hold no numbers. A node of the user's graph may own these handles, so
    that they are freed with that graph.
    """

    way = ()  # no calls inside are visible

    def __init__(
        self,
        ys: Sequence[Tensor],
        leaves: Sequence[Tensor],
        followed: Sequence[bool],
        gate: Gate | None = None,
    ):
        self._like = [(y.shape, y.dtype, y.device) for y in ys]
        self.handles: tuple[Tensor, ...] = tuple(handle(t) for t in (*ys, *leaves))
        self._node: Any = None
        self._followed = followed
        self._gate = gate or Gate()
        self._flipped: tuple[list[Tensor], Sequence[Tensor | None]] | None = None
        self.refusal: str | None = None  # why only the value of Jᵀu is available

    def leave_to(self, node: Any) -> None:
        if node is not None:
            self.handles, self._node = (), node

    def _held(self) -> Sequence[Tensor]:
        return self.handles if self._node is None else held_by(self._node)

    @property
    def _ys(self) -> list[GradientEdge]:
        return [get_gradient_edge(h) for h in self._held()[: len(self._like)]]

    @property
    def _leaves(self) -> list[GradientEdge]:
        return [GradientEdge(*_behind(h)) for h in self._held()[len(self._like) :]]

    @property
    def _xs(self) -> list[GradientEdge]:
        return self.followed(self._leaves)

    def behind(self) -> Any:
        """The node that made the first of `ys`."""
        return _behind(self._held()[0])[0]

    def followed(self, values: Sequence[Any]) -> list[Any]:
        """Select from `values`, one per leaf, those of leaves that depend on the input."""
        return [t for t, is_followed in zip(values, self._followed, strict=True) if is_followed]

    def forget(self) -> None:
        """Drop the tensors that J v has kept for the next product."""
        self._flipped = None

    def _zeros(self) -> list[Tensor]:
        return [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in self._like]

    def pull(self, c: Any) -> Sequence[Tensor | None]:
        pairs = [(y, part) for y, part in zip(self._ys, _listed(c), strict=True) if part is not None]
        with self._gate, self._gate.silence():
            return gradient([y for y, _ in pairs], self._xs, [part for _, part in pairs], create_graph=False)

    def push(self, *ts: Tensor | None) -> Any:
        self._refuse()
        if self._flipped is None:
            self._flip(self._zeros())
        assert self._flipped is not None
        cs, pulled = self._flipped
        return self._parts(self._transposed(pulled, ts, cs), cs)

    def pull_for_meeting(self, c: Any) -> tuple[Any, Sequence[Tensor | None]]:
        """Fᵀc with a graph, which `meet` needs. The returned pair takes the place of c from here on."""
        self._refuse()
        cs = [zero if part is None else part for zero, part in zip(self._zeros(), _listed(c), strict=True)]
        flipped = self._flip(cs)
        return flipped, tuple(None if g is None else g.detach() for g in flipped[1])

    def meet(self, flipped: Any, ts: Sequence[Tensor | None]) -> tuple[Any, Sequence[Tensor | None]]:
        """F(t), and the gradients of ⟨c, F(t)⟩ in `reads`."""
        cs, pulled = flipped
        self._flipped = None
        found = self._transposed(pulled, ts, [*cs, *self._leaves])
        return self._parts(found[: len(cs)], cs), found[len(cs) :]

    def pull_and_meet(self, c: Any, ts: Sequence[Tensor | None]) -> tuple[Any, Sequence[Tensor | None]]:
        """Fᵀc, and the gradients of ⟨c, F(t)⟩ in `reads`."""
        (cs, pulled), plain = self.pull_for_meeting(c)
        self._flipped = None
        return plain, self._transposed(pulled, ts, [*cs, *self._leaves])[len(cs) :]

    def _flip(self, cs: list[Tensor]) -> tuple[list[Tensor], Sequence[Tensor | None]]:
        with torch.enable_grad(), self._gate, self._gate.silence():
            cs = [c.detach().requires_grad_() for c in cs]
            self._flipped = cs, gradient(self._ys, self._xs, cs, create_graph=True)
        return self._flipped

    def _transposed(self, *values: Any) -> Sequence[Tensor | None]:
        with self._gate.silence():
            return _transposed(*values)

    def _parts(self, found: Sequence[Tensor | None], cs: Sequence[Tensor]) -> Any:
        ys = [torch.zeros_like(c) if t is None else t for t, c in zip(found, cs, strict=True)]
        return ys[0] if len(ys) == 1 else Parts(ys)

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise UnsupportedModelError(self.refusal)


def handle(t: Tensor) -> Tensor:
    """A place in the graph directly after t. It holds no numbers, and in-place changes of t do not affect
    it."""
    here: Tensor = torch.ops.aten._unsafe_view(t, t.shape)
    here.data = _nothing(t.dtype, t.device)
    return here


@cache
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def _behind(h: Tensor) -> Any:
    """The node after which a handle stands."""
    assert h.grad_fn is not None
    return h.grad_fn.next_functions[0]


def _listed(c: Any) -> Sequence[Any]:
    return c if isinstance(c, Parts) else [c]


def _transposed(
    pulled: Sequence[Tensor | None], ts: Sequence[Tensor | None], wanted: Sequence[Any]
) -> Sequence[Tensor | None]:
    """The gradient of ⟨pulled, t⟩."""
    pairs = [
        (g, t) for g, t in zip(pulled, ts, strict=True) if g is not None and t is not None and g.requires_grad
    ]
    if not pairs:
        return [None] * len(wanted)
    return gradient([g for g, _ in pairs], wanted, [t for _, t in pairs], create_graph=False)


@dataclass(slots=True)
class OwnCall:
    """A call that was made on leaves of its own."""

    outputs: list[Any]
    form: Any  # the structure of the result that contains the outputs
    used: Sequence[Tensor]  # the user's tensors on which it depends
    graph: ByAutograd

    def bridged(self) -> tuple[Any, Sequence[Tensor]]:
        """The result in the user's graph, and its tensors that have a derivative."""
        ys = _Bridge.apply(
            self.graph.handles, [y.detach() for y in self.outputs if _has_derivative(y)], *self.used
        )
        self.graph.leave_to(ys[0].grad_fn)
        ours = iter(ys)
        outputs = [next(ours) if _has_derivative(y) else y for y in self.outputs]
        return tree_unflatten(outputs, self.form), ys


def by_itself(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    is_followed: Callable[[Any], bool],
    *,
    copies: bool = False,
    again: bool = False,
) -> OwnCall | None:
    """Make a call on leaves of its own.

    Returns None if nothing in its result has a derivative. `copies` means that the call writes into its
    arguments. `again` means that it is made a second time, so it must not update constants twice (running
    means, for example).
    """
    given, spec = tree_flatten((args, kwargs))
    used = [t for t in given if isinstance(t, Tensor) and (is_followed(t) or t.requires_grad) and is_real(t)]
    used = list({id(t): t for t in used}.values())
    leaves = [t.detach().requires_grad_() for t in used]
    with torch.enable_grad():
        inside = {id(t): leaf.clone() if copies else leaf for t, leaf in zip(used, leaves, strict=True)}
        if copies or again:
            others = [t for t in given if isinstance(t, Tensor) and id(t) not in inside]
            inside |= {id(t): t.clone() for t in others}
        args_inside, kwargs_inside = tree_unflatten([inside.get(id(t), t) for t in given], spec)
        result = func(*args_inside, **kwargs_inside)
    if result is None:  # an assignment
        result = tree_flatten(args_inside)[0][0]
    outputs, form = tree_flatten(result)
    ys = [y for y in outputs if _has_derivative(y)]
    return (
        OwnCall(outputs, form, used, ByAutograd(ys, leaves, [is_followed(t) for t in used])) if ys else None
    )


def _has_derivative(y: Any) -> bool:
    return isinstance(y, Tensor) and y.requires_grad


def is_real(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


class _Bridge(torch.autograd.Function):
    """From the user's graph into that of one call, and back."""

    @staticmethod
    def forward(ctx: Any, handles: tuple[Tensor, ...], ys: list[Tensor], *used: Tensor) -> Any:
        ctx.count = len(ys)
        ctx.save_for_backward(*handles)
        ctx.set_materialize_grads(False)
        return tuple(ys)

    @staticmethod
    def backward(ctx: Any, *cs: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedModelError(
                "J.output is differentiated twice, and jacnorm has no rule for a call of the model. Take the "
                "derivative of model(x) itself, or use the products of J."
            )
        handles, needed = ctx.saved_tensors, ctx.needs_input_grad[2:]
        pairs = [(get_gradient_edge(h), c) for h, c in zip(handles, cs, strict=False) if c is not None]
        if not pairs:
            return (None,) * (2 + len(needed))
        leaves = zip(handles[ctx.count :], needed, strict=True)
        wanted = [GradientEdge(*_behind(h)) for h, need in leaves if need]
        found = iter(gradient([y for y, _ in pairs], wanted, [c for _, c in pairs], create_graph=False))
        return None, None, *[next(found) if need else None for need in needed]


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """Hardsigmoid with a second derivative, which PyTorch does not have. It is zero, because the slope is
    constant on each piece."""
    y: Tensor = _Hardsigmoid.apply(x)
    return x.copy_(y) if inplace else y


class _Hardsigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.ops.aten.hardsigmoid_backward(torch.ones_like(x), x))
        return torch.nn.functional.hardsigmoid(x)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return c * slope


def gradient(
    ys: Sequence[Any],
    xs: Sequence[Any],
    cs: Sequence[Tensor],
    create_graph: bool,
) -> Sequence[Tensor | None]:
    try:
        return torch.autograd.grad(
            ys, xs, cs, create_graph=create_graph, retain_graph=True, allow_unused=True
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
            raise UnsupportedModelError(FREED) from error
        if "inplace operation" in str(error):
            raise UnsupportedModelError(
                f"The model writes into a tensor that its derivative needs: {error}"
            ) from error
        raise UnsupportedModelError(
            f"PyTorch cannot take this derivative of the model: {str(error).rstrip('.')}. J v, and the "
            "gradient of Jᵀu, need second derivatives: replace the layer that the message names by one that "
            "has them."
        ) from error
