"""Yoshida & Miyato's penalty on the layers' own norms, l_specUB, and the bound it rests on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import check_count
from ..engines.layers import WeightedLayer
from ..engines.outer import differentiable_once
from ..engines.tape import Step
from ..errors import InputError, UnsupportedModelError
from ..estimators import spectral_norm
from ..estimators.operator import normalized
from ..linearization import Linearization
from ..precision import at_least_single, in_full_precision
from ..tracing import while_tracing
from .base import Penalty

Product = Callable[[Tensor], Tensor]
STIR = 0.01  # of a random direction in a vector that was cut off, so that it is never zero


class SpectralBoundPenalty(Penalty):
    """weight · Σ_l ‖W^l‖₂², by power iteration that goes on from call to call.

    W^l are the linear and convolution layers that the model calls as such. Products inside one fused call
    (the projections of `nn.MultiheadAttention`, an LSTM) are not seen.

    convolution
        "operator" takes the norm of the convolution on the input size it has here, which bounds ‖J‖;
        "kernel" that of the kernel reshaped to a matrix, as in the paper by Yoshida & Miyato, which bounds
        nothing.
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
        check_count("iterations", iterations)
        if convolution not in ("operator", "kernel"):
            raise InputError(f"convolution={convolution!r}: choose 'operator' or 'kernel'.")
        self.iterations, self.convolution = iterations, convolution

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, iterations={self.iterations}, convolution={self.convolution!r}"

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        once = {layer.weight: layer for layer in J.layers}  # a shared weight counts once
        if not once:
            raise InputError("SpectralBoundPenalty found no linear or convolution layer in the model.")
        layers = [self._products(layer) for layer in once.values()]
        _begin(self, [shape for _, _, shape in layers], *once)
        with torch.no_grad():
            vectors = [self._improved(getattr(self, f"v{i}"), *layer[:2]) for i, layer in enumerate(layers)]
        products = [forward(v) for v, (forward, _, _) in zip(vectors, layers, strict=True)]
        if torch.is_grad_enabled():
            with torch.no_grad():
                self._store([backward(w) for w, (_, backward, _) in zip(products, layers, strict=True)])
        return self.weight * differentiable_once(torch.cat([w.flatten() for w in products]).square().sum())

    def _improved(self, v: Tensor, forward: Product, backward: Product) -> Tensor:
        for _ in range(self.iterations - 1):
            v = normalized(backward(normalized(forward(v))))
        return v

    def _products(self, layer: WeightedLayer) -> tuple[Product, Product, torch.Size]:
        if self.convolution == "operator":
            return layer.forward, layer.backward, torch.Size((1, *layer.input_shape))
        matrix = layer.weight.flatten(1)
        return (lambda v: v @ matrix.t()), (lambda u: u @ matrix), torch.Size((1, matrix.shape[1]))

    def _store(self, directions: list[Tensor]) -> None:
        """The next power step of each layer, unless it is zero or has overflowed. (All in few calls.)"""
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
    """See to it that there are vectors to go on from."""
    for position, (shape, like) in enumerate(zip(shapes, weights, strict=True)):
        v = getattr(penalty, f"v{position}", None)
        if v is None or v.shape != shape or (v.device, v.dtype) != (like.device, like.dtype):
            new = normalized(penalty.random(shape, like.detach()))
            if v is not None and v.shape[:2] == shape[:2] and v.dim() == len(shape):
                new = normalized(_fitted(v, shape).to(new) + STIR * new)  # the same layer on another size
            penalty.register_buffer(f"v{position}", new)


def _fitted(v: Tensor, shape: torch.Size) -> Tensor:
    """Cut off, or filled up with zeros, at the end of each axis: a convolution does the same everywhere."""
    missing = [n - m for n, m in zip(shape, v.shape, strict=True)]
    return F.pad(v, [pad for n in reversed(missing) for pad in (0, n)])


@in_full_precision
@torch.no_grad()
def product_bound(J: Linearization, *, tol: float = 1e-3) -> Tensor:
    """∏_l ‖W^l‖₂ ≥ ‖J(x_i)‖₂ for each sample, (B,), each norm to `tol`: the bound of section 2.1.

    Every recorded step counts with its own norm (a ReLU with 1, a batch norm with its largest scale), and
    where branches meet the bounds add up, so that it holds for any piecewise linear network.
    """
    if J.tape is None:
        why = J.reason or "this is a transform of J, not the Jacobian of the network itself"
        raise UnsupportedModelError(f"The product bound needs the layerwise engine: {why}.")
    first = torch.zeros(J.input_shape, dtype=J.input_dtype, device=J.device)
    values = {J.tape.source: first}
    bounds = {J.tape.source: torch.ones(len(first), dtype=J.dtype, device=J.device)}
    for step in J.tape.steps:
        arguments = [None if s is None else values[s] for s in step.sources]
        values[step.target] = step.forward(*arguments)
        bounds[step.target] = sum(
            spectral_norm(_Part(step, k, arguments, values[step.target]), tol=tol).sigma * bounds[s]
            for k, s in enumerate(step.sources)
            if s is not None
        )  # type: ignore[assignment]
    return bounds[J.tape.target]


class _Part:
    """One step as an operator on one of its sources, the others held at zero."""

    def __init__(self, step: Step, k: int, arguments: list[Tensor | None], target: Tensor):
        self._step, self._k, self._arguments = step, k, arguments
        mine = arguments[k]
        assert mine is not None
        self.input_shape, self.output_shape = mine.shape, target.shape
        self.dtype, self.device = at_least_single(mine.dtype), mine.device
        self._dtypes = mine.dtype, target.dtype

    def jvp(self, v: Tensor) -> Tensor:
        v = v.to(self._dtypes[0])
        arguments = [v if i == self._k else a for i, a in enumerate(self._arguments)]
        return self._step.forward(*arguments).to(self.dtype)  # the others are zeros

    def vjp(self, u: Tensor) -> Tensor:
        result = self._step.backward(u.to(self._dtypes[1]))[self._k]
        return u.new_zeros(self.input_shape) if result is None else result.to(self.dtype)
