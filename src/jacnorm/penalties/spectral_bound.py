"""Yoshida & Miyato's penalty on the norms of the layers, l_specUB, and the product bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engines.layers import Layer
from ..engines.pairing import differentiable_once
from ..engines.tape import Parts, Slot, Step, Tape
from ..errors import InputError, UnsupportedModelError
from ..estimators import spectral_norm
from ..estimators.operator import Operator, column, normalized, start
from ..linearization import Linearization
from ..pytorch.precision import at_least_single, in_full_precision
from ..pytorch.tracing import tracing, while_tracing
from ..trust.checks import check_count
from ..trust.verify import halves
from .base import Penalty
from .settings import Setting, one_of

Product = Callable[[Tensor], Tensor]
STIR = 0.01  # the part of a random direction in a vector that was cut off, so that it is never zero


class SpectralBoundPenalty(Penalty):
    """weight · Σ_l ‖W^l‖₂² over the linear and convolution layers, by power iteration.

    `penalty(J)` returns a scalar. The power iteration continues from call to call. Layers inside a fused call
    (the projections of `nn.MultiheadAttention`, an LSTM) do not count. A weight that layers share counts
    once. A weight that is computed for each call (`torch.nn.utils.parametrize`, unless cached) counts once
    per call. Raises `InputError` if the model has no such layer.

    iterations
        Rounds of power iteration per call.
    convolution
        "operator" is the norm of the convolution as an operator on its actual input size; the product of
        these norms bounds ‖J‖. "kernel" is the norm of the kernel reshaped to a matrix, as in the paper of
        Yoshida & Miyato; it gives no bound.
    every, budget, seed
        As in `Penalty`.
    """

    def __init__(
        self,
        weight: float = 0.01,
        iterations: int = 1,
        *,
        convolution: Literal["operator", "kernel"] = "operator",
        every: int = 1,
        budget: float | None = None,
        seed: int = 0,
    ):
        super().__init__(weight, seed, every=every, budget=budget)
        self.iterations, self.convolution = iterations, convolution

    iterations = Setting[int](check_count)
    convolution = Setting[Literal["operator", "kernel"]](one_of("operator", "kernel"))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, iterations={self.iterations}, convolution={self.convolution!r}"

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        once = {layer.weight: layer for layer in J.layers}  # a shared weight counts once
        if not once:
            raise InputError("SpectralBoundPenalty found no linear or convolution layer in the model.")
        layers = [self._products(layer) for layer in once.values()]
        starts = self._starts([shape for _, _, shape in layers], list(once))
        with torch.no_grad():
            vectors = [self._improved(v, *layer[:2]) for v, layer in zip(starts, layers, strict=True)]
        products = [forward(v) for v, (forward, _, _) in zip(vectors, layers, strict=True)]
        if not self.is_looking:
            with torch.no_grad():
                self._store([backward(w) for w, (_, backward, _) in zip(products, layers, strict=True)])
        return self.weight * differentiable_once(torch.cat([w.flatten() for w in products]).square().sum())

    def _starts(self, shapes: list[torch.Size], weights: list[Tensor]) -> list[Tensor]:
        if self.is_looking and not tracing():
            return [_start(self, i, *pair) for i, pair in enumerate(zip(shapes, weights, strict=True))]
        _begin(self, shapes, *weights)
        return [getattr(self, f"v{i}") for i in range(len(shapes))]

    def _improved(self, v: Tensor, forward: Product, backward: Product) -> Tensor:
        for _ in range(self.iterations - 1):
            v = normalized(backward(normalized(forward(v))))
        return v

    def _products(self, layer: Layer) -> tuple[Product, Product, torch.Size]:
        if self.convolution == "operator":
            return layer.forward, layer.backward, torch.Size((1, *layer.input_shape))
        matrix = layer.weight.flatten(1)
        return (lambda v: v @ matrix.t()), (lambda u: u @ matrix), torch.Size((1, matrix.shape[1]))

    def _store(self, directions: list[Tensor]) -> None:
        """Store the result of the power step of each layer, unless it is zero or has overflowed."""
        lengths = torch.stack(torch._foreach_norm(directions))
        known = (lengths > 0) & (lengths < float("inf"))
        units = torch._foreach_div(directions, list(lengths.unbind()))
        for i, (is_known, unit) in enumerate(zip(known.unbind(), units, strict=True)):
            v = getattr(self, f"v{i}")
            setattr(self, f"v{i}", torch.where(is_known, unit, v).to(v.dtype))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in list(self._buffers):
            delattr(self, name)
        for key in state_dict:
            name = key.removeprefix(prefix)
            if key.startswith(prefix + "v") and name[1:].isdigit():
                self.register_buffer(name, torch.empty_like(state_dict[key]))
        super()._load_from_state_dict(state_dict, prefix, *rest)


@while_tracing
def _begin(penalty: SpectralBoundPenalty, shapes: list[torch.Size], *weights: Tensor) -> None:
    """Store start vectors for layers that have no stored vector of the right shape."""
    for position, (shape, like) in enumerate(zip(shapes, weights, strict=True)):
        with torch.inference_mode(False):  # buffers made in a validation step must work in training
            penalty.register_buffer(f"v{position}", _start(penalty, position, shape, like))


def _start(penalty: SpectralBoundPenalty, position: int, shape: torch.Size, like: Tensor) -> Tensor:
    """The stored vector of a layer, if it fits. Otherwise a random one, or what fits of the stored one."""
    v: Tensor | None = getattr(penalty, f"v{position}", None)
    if v is not None and v.shape == shape and (v.device, v.dtype) == (like.device, like.dtype):
        return v
    new = normalized(penalty.random(shape, like.detach()))
    if v is not None and v.shape[:2] == shape[:2] and v.dim() == len(shape):
        new = normalized(_fitted(v, shape).to(new) + STIR * new)  # the same layer on another size
    return new


def _fitted(v: Tensor, shape: torch.Size) -> Tensor:
    """v, cut off or filled with zeros at the end of each axis. (A convolution acts alike at every place.)"""
    missing = [n - m for n, m in zip(shape, v.shape, strict=True)]
    return F.pad(v, [pad for n in reversed(missing) for pad in (0, n)])


@in_full_precision
@torch.no_grad()
def product_bound(J: Linearization, *, tol: float = 1e-3) -> Tensor:
    """The upper bound ∏_l ‖W^l‖₂ ≥ ‖J(x_i)‖₂ for each sample (section 2.1 of the paper).

    J is a linearization of the whole network. `tol` is the relative tolerance of each norm. Returns a tensor
    of shape (B,). Raises `UnsupportedModelError` if the calls of the model were not recorded, or if J is a
    transform.

    Every recorded step contributes its own norm (1 for a ReLU, the largest scale for a batch norm). Where
    branches meet, their bounds are added. So the bound holds for any network whose calls are recorded. For a
    smooth network it is a bound only at these x. (A step on tensors whose first axis is not the batch
    contributes its norm on the whole batch.)
    """
    if J.tape is None or J.tape.whole:
        why = J.reason or "this is a transform of J, not the Jacobian of the network itself"
        raise UnsupportedModelError(f"The product bound needs the layerwise engine: {why}.")
    first = torch.zeros(J.input_shape, dtype=J.input_dtype, device=J.device)
    values = {J.tape.source: first}
    bounds = {J.tape.source: torch.ones(len(first), dtype=J.dtype, device=J.device)}
    by_sample = _by_sample(J.tape, first)
    read = J.tape.values()
    for step in J.tape.steps:
        arguments = [None if s is None else values[s] for s in step.sources]
        mine = [read[k] for k in step.reads]
        values[step.target] = step.push(*mine, *arguments)
        alone = by_sample.issuperset({*step.sources, step.target} - {None})
        total = torch.zeros_like(bounds[J.tape.source])
        for k, s in enumerate(step.sources):
            if s is not None:
                part = _Part(step, mine, k, arguments, values[step.target])
                operator: Operator
                operator, before = (part, bounds[s]) if alone else (_Whole(part), bounds[s].max())
                total = total + spectral_norm(operator, tol=tol).sigma * before
        bounds[step.target] = total
    return bounds[J.tape.target]


def _by_sample(tape: Tape, first: Tensor) -> set[Slot | None]:
    """The slots whose first axis is the batch. There, samples that do not change have zero rows."""
    v, read = start(first.shape, first), tape.values()
    found = None
    for chosen in halves(len(first), first.device):
        changes: dict[Slot | None, Any] = {None: None, tape.source: v * column(chosen, v)}
        for step in tape.steps:
            changes[step.target] = step.push(
                *(read[k] for k in step.reads), *(changes[s] for s in step.sources)
            )
        del changes[None]
        kept = {slot for slot, y in changes.items() if _stays(y, chosen)}
        found = kept if found is None else found & kept
    return found or set()


def _stays(y: Any, chosen: Tensor) -> bool:
    """Whether only the chosen samples have changed."""
    parts = y if isinstance(y, Parts) else [y]
    return all(len(part) == len(chosen) and not part[~chosen].any() for part in parts)


class _Whole:
    """An operator on a batch, seen as an operator on a single, larger sample."""

    def __init__(self, part: _Part):
        self._part = part
        self.input_shape, self.output_shape = (
            torch.Size((1, *shape)) for shape in (part.input_shape, part.output_shape)
        )
        self.dtype, self.device = part.dtype, part.device

    def jvp(self, v: Tensor) -> Tensor:
        return self._part.jvp(v[0])[None]

    def vjp(self, u: Tensor) -> Tensor:
        return self._part.vjp(u[0])[None]


class _Part:
    """One step as an operator on one of its sources. The tangents of the other sources are zero."""

    def __init__(self, step: Step, read: Any, k: int, arguments: list[Any], target: Any):
        self._step, self._read, self._k, self._arguments = step, read, k, arguments
        self._mine, self._target = arguments[k], target
        mine, whole = _joined(self._mine), _joined(target)
        self.input_shape, self.output_shape = mine.shape, whole.shape
        self.dtype, self.device = at_least_single(mine.dtype), mine.device
        self._dtypes = mine.dtype, whole.dtype

    def jvp(self, v: Tensor) -> Tensor:
        v = _apart(v.to(self._dtypes[0]), self._mine)
        arguments = [v if i == self._k else a for i, a in enumerate(self._arguments)]
        return _joined(self._step.push(*self._read, *arguments)).to(self.dtype)  # the others are zeros

    def vjp(self, u: Tensor) -> Tensor:
        result = self._step.pull(*self._read, _apart(u.to(self._dtypes[1]), self._target))[self._k]
        if result is None:
            return u.new_zeros(self.input_shape)
        if isinstance(result, Parts):
            known = zip(result, self._mine, strict=True)
            result = Parts(torch.zeros_like(like) if part is None else part for part, like in known)
        return _joined(result).to(self.dtype)


def _joined(y: Any) -> Tensor:
    """Several results as one tensor, sample by sample if their first axis is the batch."""
    if isinstance(y, Tensor):
        return y
    if len({len(part) for part in y}) == 1:
        return torch.cat([part.reshape(len(part), -1) for part in y], 1)
    return torch.cat([part.flatten() for part in y])


def _apart(v: Tensor, like: Any) -> Any:
    if isinstance(like, Tensor):
        return v
    if v.dim() == 1:
        pieces = v.split([part.numel() for part in like])
    else:
        pieces = v.split([part[0].numel() for part in like], 1)
    return Parts(piece.reshape(part.shape) for piece, part in zip(pieces, like, strict=True))
