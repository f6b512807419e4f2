"""Each call's rule against autograd, when a model is verified: the call runs once more, on leaves of its
own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..precision import at_least_single
from .by_autograd import OwnCall, by_itself
from .rules import RULES, Call
from .slots import Slots
from .tape import Parts, Slot, Step

COARSE = 0.1  # bfloat16 is off by a few percent in a deep network
FLOOR = 1e3  # rounding errors: products below this many are not compared


def check_call(
    slots: Slots, name: str, run: partial[Any], in_place: bool
) -> Callable[[Step, Call, Any], str | None] | None:
    """Make the call by itself, and return what compares it with what its rule makes of it."""
    state = torch.random.get_rng_state()
    device_state = None
    devices = {t.device for t in (*run.args, *run.keywords.values()) if isinstance(t, Tensor)} - {
        torch.device("cpu")
    }
    if devices:
        module = torch.get_device_module(next(iter(devices)))
        device_state = module.get_rng_state()
    own = by_itself(run.func, run.args, run.keywords, lambda t: slots.of(t) is not None, copies=True)
    torch.random.set_rng_state(state)
    if devices:
        module.set_rng_state(device_state)
    if own is None:
        return None
    sources = [slots.of(t) for t in own.used if slots.of(t) is not None]
    return partial(_compared, own, sources, [t for t in own.used if slots.of(t) is not None])


def _compared(
    own: OwnCall, sources: list[Slot | None], followed: list[Tensor], step: Step, call: Call, y: Any
) -> str | None:
    """What is wrong with a rule, or None."""
    result = [
        t
        for t in (y if isinstance(y, tuple | list) else [y])
        if isinstance(t, Tensor) and t.is_floating_point()
    ]
    theirs_y = [y for y in own.outputs if isinstance(y, Tensor) and y.requires_grad]
    count = len(theirs_y)
    if y is None:  # an assignment
        result = theirs_y
    result, theirs_y = result[: len(theirs_y)], theirs_y[: len(result)]
    eps = max(torch.finfo(t.dtype).eps for t in (*result, *own.used) if t.is_floating_point())
    tolerance = min(4 * eps**0.5, COARSE)
    for a, b in zip(result, theirs_y, strict=True):
        if a.shape != b.shape or _distance(a.detach(), b) > tolerance:
            return "its rule gives another result than the call (please report this model)"
    cs = [_probe(t, i) for i, t in enumerate(theirs_y)]
    c = Parts(cs) if RULES[step.name].parts else cs[0]
    theirs_c = cs[0] if count == 1 else Parts([*cs, *[None] * (count - len(cs))])
    ts = {s: _probe(x, 7 + i) for i, (s, x) in enumerate(zip(sources, followed, strict=True))}
    with torch.no_grad():
        theirs = own.graph.pull(theirs_c)
        try:
            ours = step.pull(*call.reads, c)
            pushed = step.push(*call.reads, *[None if s is None else ts[s] for s in step.sources])
        except (RuntimeError, IndexError, TypeError) as error:
            return f"a rule failed (please report this model): {error}"
    found: dict[Slot | None, Any] = {}
    for s, g in zip(step.sources, ours, strict=True):
        if s is not None and g is not None:
            found[s] = found[s] + g if s in found else g
    floor = FLOOR * eps * sum(float(at.norm()) for at in cs)
    for s, g in zip(sources, theirs, strict=True):
        a, b = (torch.zeros_like(ts[s]) if t is None else t for t in (found.get(s), g))
        if a.shape != b.shape:
            return "a rule gave a wrong shape (please report this model)"
        if not _distance(a, b, floor) <= tolerance:
            return (
                f"its products differ from autograd's by {_distance(a, b, floor):.1e} (please report "
                f"this model)"
            )
    return _asymmetry(pushed, cs, theirs, ts, sources, tolerance)


def _asymmetry(pushed: Any, cs: Any, theirs: Any, ts: Any, sources: Any, tolerance: float) -> str | None:
    """⟨F t, c⟩ and ⟨t, Fᵀ c⟩ are the same number."""
    pushed = pushed if isinstance(pushed, Parts) else [pushed]
    one = sum(float((p.double() * c.double()).sum()) for p, c in zip(pushed, cs, strict=False))
    other = sum(
        float((g.double() * ts[s].double()).sum())
        for s, g in zip(sources, theirs, strict=True)
        if g is not None
    )
    size = sum(float(p.double().norm() * c.double().norm()) for p, c in zip(pushed, cs, strict=False))
    size = max(
        size,
        sum(
            float(g.double().norm() * ts[s].double().norm())
            for s, g in zip(sources, theirs, strict=True)
            if g is not None
        ),
    )
    scale = sum(float(c.double().norm()) for c in cs) * sum(float(t.double().norm()) for t in ts.values())
    eps = torch.finfo(at_least_single(cs[0].dtype)).eps if cs[0].is_floating_point() else 1e-7
    if abs(one - other) <= max(tolerance * size, FLOOR * eps * scale) or size != size:
        return None
    return (
        f"F and Fᵀ of its rule are not transposes of each other: {abs(one - other) / size:.1e} "
        f"(please report this model)"
    )


def _distance(a: Tensor, b: Tensor, floor: float = 0.0) -> float:
    dtype = at_least_single(b.dtype)
    a, b = a.detach().to(dtype), b.detach().to(dtype)
    both = torch.isfinite(a) & torch.isfinite(b)
    if not bool(both.all()):
        if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
            return float("inf")
        a, b = a[both], b[both]
    size = max(float(b.norm()), float(a.norm()), floor, torch.finfo(dtype).tiny)
    return float((a - b).norm()) / size


def _probe(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(like.shape, generator=generator, dtype=dtype, device="cpu").to(like.detach())
