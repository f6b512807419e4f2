"""Trust, but verify: a model's products are checked against autograd's, at its first visit and later ones."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from .engines.autograd import Graph
from .engines.tape import Plan, Tape
from .errors import CoupledSamplesError, UnsupportedModelError
from .modules import modules_of
from .precision import at_least_single
from .tracing import inside_torch_func, while_tracing

COARSE = 0.1  # bfloat16 is off by a few percent in a deep network
Kind = tuple[tuple[int, ...], torch.dtype, str, Any]


@dataclass
class Verdict:
    independent: bool = False  # samples do not see each other
    layerwise: bool = False  # every call has a rule, and the products are autograd's
    reason: str | None = None  # why not, where that is known
    plan: Plan = ()  # the calls that were checked last ...
    plans: set[Plan] = field(default_factory=set)  # ... and others before
    flipped: bool = False  # autograd's graph was asked for J v ...
    refusal: str | None = None  # ... and this is why it cannot give that
    visits: int = 0

    def visit(self) -> bool:
        """Whether to check everything now.

        A check looks at one batch and at the weights of the day: a branch that starts at zero hides in it,
        and a layer can be exchanged. So it is made anew at the second, fourth, eighth … visit.
        """
        if inside_torch_func():  # where nothing can be checked
            return False
        self.visits += 1
        is_due = self.visits & (self.visits - 1) == 0
        if is_due:
            self.forget()
        return is_due

    def learn(self, reason: str | None, plan: Plan) -> None:
        """What a check has shown of the layerwise engine."""
        self.layerwise, self.reason, self.plan = reason is None, reason, plan
        if len(self.plans) > MOST:
            self.plans.clear()
        self.plans.add(plan)

    def forget(self) -> None:
        self.independent = self.layerwise = self.flipped = False
        self.reason = self.refusal = None
        self.plans.clear()


LARGE = 8  # a whole number from here on is no axis: the time of a diffusion model, say
MOST = 64  # verdicts of a model, and ways through it: what never repeats must not fill the memory
_verdicts: weakref.WeakKeyDictionary[Any, dict[Any, Verdict]] = weakref.WeakKeyDictionary()


def kind(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kind:
    """Batches of one kind differ in their values alone, and in their length."""
    return tuple(int(n) for n in x.shape[1:]), x.dtype, x.device.type, _what((args, kwargs))


def _what(value: Any) -> Any:
    """Of an argument: switches and axes decide what a model computes, other things only its numbers."""
    if isinstance(value, tuple | list):
        return tuple(map(_what, value))
    if isinstance(value, dict):
        return tuple((name, _what(item)) for name, item in value.items())
    is_switch = isinstance(value, bool | str | None) or (isinstance(value, int) and abs(value) < LARGE)
    return value if is_switch else type(value)


def verdict(model: Any, kind: Kind, *section: str | None) -> Verdict:
    """What earlier runs of this section of the model have shown, in this mode, on batches of this kind."""
    # A bound method is a new object each time it is looked up; its instance is not.
    owner, what = getattr(model, "__self__", model), getattr(model, "__func__", None)
    if isinstance(owner, Tensor):  # which compares elements, not objects
        return Verdict()
    autocast = torch.is_autocast_enabled(kind[2])
    key = (what, _modes(model), autocast, kind, *section)
    try:
        known = _verdicts.setdefault(owner, {})
        if len(known) > MOST:
            known.clear()
        return known.setdefault(key, Verdict())
    except TypeError:  # cannot be hashed or weakly referenced: looked at each time
        return Verdict()


def _modes(model: Any) -> int:
    """Which modules behind the model are in training mode."""
    return hash(tuple(m.training for root in modules_of(model).values() for m in root.modules()))


@while_tracing
def known_plan(model: Any, kind: Kind) -> Plan | None:
    known = verdict(model, kind, None, None)
    return known.plan if known.layerwise and known.independent else None


def check_independent(graph: Graph, output: Tensor, *, thoroughly: bool = True) -> bool:
    """Whether samples were seen to be independent; False where there was nothing to see it by.

    Cotangents of some samples are pulled back, and the others must get nothing. The groups split the
    batch by each binary digit of the position, so that any two samples are apart in one of them; one
    group is enough where only a part of the model is new.
    """
    seen = len(output) > 1
    groups = _groups(len(output), output.device)
    for chosen in groups if thoroughly else islice(groups, 1):
        with torch.no_grad():
            pulled = graph.vjp(_probe(output) * chosen.view(-1, *[1] * (output.dim() - 1)))
        if pulled is None:
            return False
        size = pulled.abs().reshape(len(pulled), -1).amax(1)
        own, others = float(size[chosen].max()), float(size[~chosen].max())
        seen = seen and 0 < own < float("inf")
        if others > min(1e3 * torch.finfo(pulled.dtype).eps, 0.01) * own:
            raise CoupledSamplesError(
                "The output of one sample depends on the input of another, so there is no Jacobian per "
                "sample. Look for an operation across the first axis: a mean, softmax or norm over the "
                "batch, a reshape that loses the batch axis. (Batch norm in training mode is taken care "
                "of, unless torch.jit hides it: pass the module that was scripted, or put it into eval mode.)"
            )
    return seen


def disagreement(tape: Tape, graph: Graph, output: Tensor, x: Tensor, eps: float) -> str | None:
    """Why the layerwise products cannot be trusted, or None. `eps` is that of the coarsest precision used.

    Jᵀu must be autograd's for a random u, and J v the transpose of that for a random v.
    """
    u, v = _probe(output), _probe(x)
    with torch.no_grad():
        try:
            ours, forward, theirs = tape.vjp(u), tape.jvp(v), graph.vjp(u)
        except (RuntimeError, IndexError, TypeError) as error:
            return f"a rule failed (please report this model): {error}"
    if ours is None or theirs is None:
        return None if ours is theirs else "the recorded calls do not link input and output"
    if forward.shape != output.shape or ours.shape != x.shape:
        return "a rule gave a wrong shape (please report this model)"
    asymmetry = _asymmetry(forward, u, theirs, v)
    ours, theirs = _scaled_together(ours, theirs)
    differences = float((ours - theirs).norm() / theirs.norm().clamp_min(1)), asymmetry
    if all(difference <= min(4 * eps**0.5, COARSE) for difference in differences):  # and is not NaN
        return None
    distance = max(differences)
    return f"its products differ from autograd's by {distance:.1e} (please report this model)"


def refusal(graph: Graph, output: Tensor, x: Tensor, eps: float) -> str | None:
    """Why autograd's graph gives neither J v nor the gradient of Jᵀu, or None.

    PyTorch leaves out without a word what a backward pass did where autograd does not look. Then J v is
    not the transpose of Jᵀu.
    """
    u, v = _probe(output), _probe(x)
    with torch.no_grad():
        try:
            pulled, pushed = graph.vjp(u), graph.jvp(v)
        except UnsupportedModelError as error:
            return str(error)
    if pulled is None:
        return None
    distance = _asymmetry(pushed, u, pulled, v)
    # Reduced precision inside kernels (TF32) must not count; NaN is others' business.
    if distance <= min(max(4 * eps**0.5, 0.01), COARSE) or math.isnan(distance):
        return None
    names = ", ".join(f.__name__ for f in graph.custom_functions)
    suspects = f" (look at {names})" if names else ""
    return (
        f"The backward pass of a layer cannot be differentiated{suspects}: it is marked "
        "@once_differentiable, or it leaves autograd (detach, no_grad, NumPy, a kernel of its own). J v, and "
        "the gradient of Jᵀu, would be wrong. Write its backward with operations that PyTorch can "
        "differentiate, or replace the layer. To measure, take spectral_norm(J.dense()) under no_grad()."
    )


def doubts(graph: Graph) -> str | None:
    """What may be wrong with gradients of J and cannot be found out, or None."""
    found = [f.__name__ for f, nodes in graph.custom_functions.items() if any(map(_keeps_constants, nodes))]
    if not found:
        return None
    return (
        f"{', '.join(found)} saves tensors without a gradient for its backward pass. If it has computed them "
        "from its input, autograd takes them for constants: J is right, and the gradient of a penalty lacks "
        "what goes through them. Save arguments and results only, or try torch.autograd.gradgradcheck."
    )


def _keeps_constants(node: Any) -> bool:
    """(Masks are whole numbers.)"""
    return any(t is not None and t.is_floating_point() and not t.requires_grad for t in node.saved_tensors)


def _asymmetry(pushed: Tensor, u: Tensor, pulled: Tensor, v: Tensor) -> float:
    """How far ⟨J v, u⟩ and ⟨v, Jᵀu⟩, which are the same, are apart for random u and v."""
    pushed, pulled = _scaled_together(pushed, pulled)
    size = torch.maximum(pushed.norm(), pulled.norm()).clamp_min(1)
    return float(((pushed * u).sum() - (pulled * v).sum()).abs() / size)


def _scaled_together(*vectors: Tensor) -> list[Tensor]:
    """By their largest entry, which is then 1, so that squares neither over- nor underflow."""
    vectors = tuple(t.to(at_least_single(t.dtype)) for t in vectors)
    # Where weights have died away, products are rounded to next to nothing: they stay below 1, and callers,
    # who divide by no less than 1, do not compare their digits.
    finfo = torch.finfo(vectors[0].dtype)
    scale = torch.stack([t.abs().max() for t in vectors]).max().clamp_min(finfo.tiny / finfo.eps)
    return [t / scale for t in vectors]


def _groups(count: int, device: torch.device) -> Iterator[Tensor]:
    positions = torch.arange(count, device=device)
    for digit in range((count - 1).bit_length()):
        group = (positions >> digit) % 2 == 0
        yield group
        yield ~group


def _probe(like: Tensor) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(1)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64, device="cpu").to(like)
