"""Compares the rule of each call with autograd, when a model is verified. For this the call runs once more,
on leaves of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedModelError
from ..pytorch.precision import at_least_single, without_autocast
from .by_autograd import OwnCall, by_itself
from .own import take_back, wrong_gradient
from .rules import RULES, Call
from .slots import Slots
from .tape import Parts, Slot, Step

COARSE = 0.1  # bfloat16 is off by a few percent in a deep network
REPORT = " (please report this model)"
FLOOR = 1e3  # products smaller than this many rounding errors are not compared
PIECE = 1 << 18  # numbers that are compared at a time, because comparing copies them


def check_call(
    slots: Slots, name: str, run: partial[Any], in_place: bool
) -> Callable[[Step, Call, Any], str | None] | None:
    """Make the call by itself, and return a function that compares it with its rule."""
    state = torch.random.get_rng_state()
    device_state = None
    devices = {t.device for t in (*run.args, *run.keywords.values()) if isinstance(t, Tensor)} - {
        torch.device("cpu")
    }
    if devices:
        module = torch.get_device_module(next(iter(devices)))
        device_state = module.get_rng_state()
    # The name of a user's function does not say whether it writes into its arguments.
    copies = in_place or RULES[name].own is not None
    own = by_itself(
        run.func, run.args, run.keywords, lambda t: slots.of(t) is not None, copies=copies, again=True
    )
    torch.random.set_rng_state(state)
    if devices:
        module.set_rng_state(device_state)
    if own is None:
        return None
    sources = [(slots.of(t), t.shape, t.dtype) for t in own.used if slots.of(t) is not None]
    compared = partial(_compared, own, sources)
    if RULES[name].own is None:
        return compared
    return partial(_compared_own, compared, run, [t for t in own.used if slots.of(t) is not None])


def one_way_only(own: OwnCall) -> bool:
    """Whether autograd gives Jᵀu of a call without a rule, but not J v. If a backward pass computes something
    outside of autograd, PyTorch silently ignores that part. Then ⟨F t, c⟩ differs from ⟨t, Fᵀc⟩."""
    graph = own.graph
    ys = [y for y in own.outputs if isinstance(y, Tensor) and y.requires_grad]
    cs = [_probe(y.shape, y.dtype, y.device, i) for i, y in enumerate(ys)]
    ts = [_probe(t.shape, t.dtype, t.device, 7 + i) for i, t in enumerate(graph.followed(own.used))]
    with torch.no_grad():
        try:
            pulled, pushed = graph.pull(Parts(cs) if len(cs) > 1 else cs[0]), graph.push(*ts)
        except UnsupportedModelError:
            return False  # this failure is not silent: J v raises an error
    graph.forget()
    one = _paired(list(zip(pushed if isinstance(pushed, Parts) else [pushed], cs, strict=True)))
    other = _paired([(g, t) for g, t in zip(pulled, ts, strict=True) if g is not None])
    dtypes = [t.dtype for t in (*ys, *ts)]
    eps = max(torch.finfo(dtype).eps for dtype in dtypes)
    scale = sum(map(_size, cs)) * sum(map(_size, ts))
    return _asymmetry(one, other, scale, min(max(4 * eps**0.5, 0.01), COARSE), dtypes[0]) is not None


def _compared(own: OwnCall, followed: list[Any], step: Step, call: Call, y: Any) -> str | None:
    """The error of a rule, or None. (`followed`: slot, shape and dtype of each argument before the call.)"""
    result = [
        t
        for t in (y if isinstance(y, tuple | list) else [y])
        if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())
    ]
    theirs_y = [y for y in own.outputs if isinstance(y, Tensor) and y.requires_grad]
    count = len(theirs_y)
    if y is None:  # an assignment
        result = theirs_y
    result, theirs_y = result[: len(theirs_y)], theirs_y[: len(result)]
    eps = max(torch.finfo(t.dtype).eps for t in (*result, *own.used))
    tolerance = min(4 * eps**0.5, COARSE)
    for a, b in zip(result, theirs_y, strict=True):
        if a.shape != b.shape or _distance(a.detach(), b) > tolerance:
            return f"its rule gives another result than the call{REPORT}"
    device, sources = theirs_y[0].device, [s for s, *_ in followed]
    cs = [_probe(t.shape, t.dtype, device, i) for i, t in enumerate(theirs_y)]
    own.outputs = theirs_y = []  # they are large, and no longer needed
    c = Parts(cs) if RULES[step.name].parts else cs[0]
    theirs_c = cs[0] if count == 1 else Parts([*cs, *[None] * (count - len(cs))])
    with torch.no_grad(), without_autocast(device):  # as products are taken
        theirs = own.graph.pull(theirs_c)
        del own.graph  # it keeps all tensors that the call has computed
        try:
            ours = step.pull(*call.reads, c)
        except (RuntimeError, IndexError, TypeError) as error:
            return f"a rule failed{REPORT}: {error}"
        # Products of this size may consist of rounding errors, even more so in double precision.
        floor = eps * max(FLOOR, 10 / tolerance) * sum(map(_size, cs))
        if wrong := _different(step.sources, ours, followed, theirs, floor, tolerance):
            return wrong
        del ours
        ts = {s: _probe(shape, dtype, device, 7 + i) for i, (s, shape, dtype) in enumerate(followed)}
        other = _paired([(g, ts[s]) for s, g in zip(sources, theirs, strict=True) if g is not None])
        del theirs
        try:
            pushed = step.push(*call.reads, *[None if s is None else ts[s] for s in step.sources])
        except (RuntimeError, IndexError, TypeError) as error:
            return f"a rule failed{REPORT}: {error}"
    one = _paired(list(zip(pushed if isinstance(pushed, Parts) else [pushed], cs, strict=False)))
    scale = sum(map(_size, cs)) * sum(map(_size, ts.values()))
    return _asymmetry(one, other, scale, tolerance, cs[0].dtype)


def _different(
    sources: Any, ours: Any, followed: list[Any], theirs: Any, floor: float, tolerance: float
) -> str | None:
    """The error of the cotangents of a rule, or None."""
    found: dict[Slot | None, Any] = {}
    for s, g in zip(sources, ours, strict=True):
        if s is not None and g is not None:
            found[s] = found[s] + g if s in found else g
    for (s, shape, _), g in zip(followed, theirs, strict=True):
        known = [t for t in (found.get(s), g) if t is not None]
        if not known:
            continue
        a, b = known if len(known) == 2 else (known[0], torch.zeros_like(known[0]))
        if a.shape != b.shape or a.shape != shape:
            return f"a rule gave a wrong shape{REPORT}"
        if not _distance(a, b, floor) <= tolerance:
            return f"its products differ from autograd's by {_distance(a, b, floor):.1e}{REPORT}"
    return None


def _compared_own(
    compared: Any, run: partial[Any], followed: list[Tensor], step: Step, call: Call, y: Any
) -> str | None:
    """The error of a user's rule, or None. Its gradients are compared as well. A wrong rule is dropped."""
    wrong = compared(step, call, y)
    if wrong is None:
        c, *ts = (_probe(t.shape, t.dtype, t.device, i) for i, t in enumerate([y, *followed]))
        tolerance = min(4 * torch.finfo(y.dtype).eps ** 0.5, COARSE)
        try:
            wrong = wrong_gradient(RULES[step.name], run, followed, c, ts, tolerance)
        except (RuntimeError, IndexError, TypeError) as error:
            wrong = f"its rule failed: {error}"
    if wrong is not None:
        wrong = str(wrong).replace(REPORT, "")
        take_back(step.name, wrong)
    return wrong


def _paired(pairs: list[tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """The sum of all ⟨a, b⟩, and an upper bound of it."""
    return sum(_inner(a, b) for a, b in pairs), sum(_size(a) * _size(b) for a, b in pairs)


def _asymmetry(
    one: tuple[float, float], other: tuple[float, float], scale: float, tolerance: float, dtype: torch.dtype
) -> str | None:
    """The error if ⟨F t, c⟩ and ⟨t, Fᵀ c⟩ differ, or None."""
    size, apart = max(one[1], other[1]), abs(one[0] - other[0])
    eps = torch.finfo(at_least_single(dtype)).eps
    if apart <= max(tolerance * size, FLOOR * eps * scale) or math.isnan(apart):  # a division by zero, say
        return None
    return f"F and Fᵀ of its rule are not transposes of each other: {apart / size:.1e}{REPORT}"


def _inner(a: Tensor, b: Tensor) -> float:
    return sum(float((p * q.conj()).sum(dtype=_double(p)).real) for p, q in _pieces(a, b))


def _size(t: Tensor) -> float:
    return math.hypot(*[float(torch.linalg.vector_norm(p, dtype=_double(p))) for (p,) in _pieces(t)])


def _double(t: Tensor) -> torch.dtype:
    return torch.complex128 if t.is_complex() else torch.float64


def _distance(a: Tensor, b: Tensor, floor: float = 0.0) -> float:
    """The distance of a and b relative to the larger, over finite entries. It is infinite if only one of two
    entries is finite."""
    apart, sizes = [0.0], [(0.0, 0.0)]
    dtype = at_least_single(b.dtype)
    for p, q in _pieces(a.detach(), b.detach()):
        p, q = p.to(dtype), q.to(dtype)
        finite = torch.isfinite(p), torch.isfinite(q)
        if not torch.equal(*finite):
            return float("inf")
        if not bool(finite[0].all()):
            p, q = p[finite[0]], q[finite[0]]
        sizes.append((_size(p), _size(q)))
        apart.append(_size(p - q))
    return math.hypot(*apart) / max(*map(math.hypot, *sizes), floor, torch.finfo(dtype).tiny)


def _pieces(*ts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of tensors of equal shape, some rows at a time."""
    if ts[0].dim() == 0 or ts[0].numel() <= PIECE:
        yield ts
        return
    rows = max(1, PIECE // ts[0][0].numel())
    yield from zip(*[t.split(rows) for t in ts], strict=True)


def _probe(shape: torch.Size, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """Random numbers in the precision of the call. A higher precision would double large activations."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype, device="cpu").to(device)
