"""Batch norm in the paper's pseudo-inference (section 3.2).

For the Jacobian, the batch's mean and variance are constants. Batch norm is then one scale per channel,
γ/√(var + ε), and no sample depends on another. The loss keeps the ordinary gradient through the statistics.

`flowing` says whether the penalty's gradient may reach the weights through the variance. In the paper,
"fixed" suggests that it may not. If it may, which is the default, the penalty does not depend on the scale of
the weights before the norm, just like the network itself. (The slope of a later smooth activation also
depends on the statistics. That gradient passes in both conventions, because it cannot be separated from the
loss's gradient.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedModelError
from ..pytorch.precision import HALF, at_least_single
from ..pytorch.tracing import inside_torch_func, tracing
from .rules.table import Call

aten = torch.ops.aten


class Statistics:
    """The mean and 1/√(var + ε) of a batch, one number per channel, for later runs of a part of the batch.

    They are computed on demand, with their gradients, because the slope of a smooth activation depends on
    them.
    """

    def __init__(self, x: Tensor, eps: float):
        self._x, self._eps = x, eps  # autograd checks that x is not changed in place

    @cached_property
    def mean(self) -> Tensor:
        return self._x.to(at_least_single(self._x.dtype)).mean(_all_but_channels(self._x))

    @cached_property
    def inverse_std(self) -> Tensor:
        return _inverse_std(self._x, self._eps)

    def normalized(self, x: Tensor, flowing: bool) -> Tensor:
        mean, inverse_std = (per_channel(t, x.dim()) for t in (self.mean, self.inverse_std))
        if flowing:
            return (x - mean) * inverse_std
        fixed = x.detach()  # the derivative is a constant; the value passes all gradients
        return (x - fixed) * inverse_std.detach() + (fixed - mean) * inverse_std


@dataclass
class Gate:
    """Closed while products with J are computed: statistics then pass no gradient to the input.

    It is `quiet` while anything of J is computed: hooks of the user then do not fire.
    """

    closed: bool = False
    quiet: bool = False

    def __enter__(self) -> None:
        self.closed = True

    def __exit__(self, *_: object) -> None:
        self.closed = False

    @contextmanager
    def silence(self) -> Iterator[None]:
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    flowing: bool = False,
    gate: Gate | None = None,
    given: Statistics | None = None,
) -> tuple[Call, Statistics | None]:
    """The call, whose F is its own transpose, and the statistics of the batch (None in evaluation mode).

    A gate is needed if y is part of a model that is one step by autograd. If `given` is set, its statistics
    replace those of the batch.
    """
    if given is not None:
        y = given.normalized(x, flowing)
        y = y if weight is None else y * per_channel(weight, x.dim())
        y = y if bias is None else y + per_channel(bias, x.dim())
        inverse_std = given.inverse_std if flowing else given.inverse_std.detach()
        return _scaling(y.to(x.dtype), weight, inverse_std), given
    statistics: Statistics | None = None
    fits = all(t is None or t.shape == x.shape[1:2] for t in (running_mean, running_var, weight, bias))
    # With one value per channel, or parameters of the wrong size, PyTorch raises its own error.
    if not training or not fits or x.numel() <= x.shape[1]:
        y = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        if not fits:  # PyTorch checks only the number of entries, and its backward pass then fails
            raise ValueError("the parameters of batch norm must be vectors with a number for each channel")
        # The variance is empty only if the batch is: a part of a batch may have no samples.
        inverse_std = torch.rsqrt((x.new_zeros(x.shape[1]) if running_var is None else running_var) + eps)
    elif gate is None:
        y, mean, inverse_std = torch.native_batch_norm(
            x, weight, bias, running_mean, running_var, True, momentum, eps
        )
        statistics = Statistics(x, eps)
    else:
        _refuse_recomputation()
        y, mean, inverse_std = _GatedBatchNorm.apply(
            x, weight, bias, running_mean, running_var, momentum, eps, flowing, gate
        )
        statistics = Statistics(x, eps)
    if statistics is not None and flowing:
        # In half precision the cube in the gradient may overflow. torch.func accepts none of these functions.
        anew = inverse_std.dtype in HALF or inside_torch_func()
        inverse_std = _inverse_std(x, eps) if anew else Flowing.apply(inverse_std, x, mean, eps)
    return _scaling(y, weight, inverse_std), statistics


def in_functional_order(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *options: Any,
    **named: Any,
) -> tuple[Any, ...]:
    """The arguments of torch.batch_norm as F.batch_norm has them."""
    rest = (*options, *(named[name] for name in ("training", "momentum", "eps")[len(options) :]))
    return input, running_mean, running_var, weight, bias, *rest[:3]


def _scaling(y: Tensor, weight: Tensor | None, inverse_std: Tensor) -> Call:
    """v ↦ γ r v. Gradients through r are left to the graph of r."""
    dims = y.dim()
    over = _all_but_channels(y)

    def scale(r: Tensor, *rest: Tensor) -> Tensor:
        *gamma, v = rest
        factor = gamma[0] * r if gamma else r
        return (v * per_channel(factor, dims)).to(v.dtype)

    def terms(r: Tensor, *rest: Tensor) -> list[Tensor]:
        *gamma, c, t = rest
        shared = (c * t).to(r.dtype).sum(over)
        return [shared * gamma[0], shared * r] if gamma else [shared]

    return Call(scale, scale, (inverse_std,) if weight is None else (inverse_std, weight), terms, y=y)


class Flowing(torch.autograd.Function):
    """`_inverse_std(x, eps)` if its value is known, with its gradient in x: −(x − mean)/(N √(var + ε)³)."""

    @staticmethod
    def forward(ctx: Any, inverse_std: Tensor, x: Tensor, mean: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(inverse_std, x, mean)
        ctx.eps = eps
        return inverse_std.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inverse_std, x, mean = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative needs the dependence of these values on x
            again = Statistics(x, ctx.eps)
            inverse_std, mean = again.inverse_std, again.mean
        count = x.numel() // len(mean)
        slope, middle = (per_channel(t, x.dim()) for t in (-gradient * inverse_std**3 / count, mean))
        return None, (x - middle).mul_(slope).to(x.dtype), None, None


class _GatedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *options: Any) -> Any:
        weight, bias, running_mean, running_var, momentum, eps, flowing, gate = options
        y, mean, inverse_std = torch.native_batch_norm(
            x, weight, bias, running_mean, running_var, True, momentum, eps
        )
        ctx.save_for_backward(x, weight, mean, inverse_std)
        ctx.eps, ctx.flowing, ctx.gate = eps, flowing, gate
        ctx.mark_non_differentiable(mean, inverse_std)
        return y, mean, inverse_std

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> Any:
        x, weight, mean, inverse_std = ctx.saved_tensors
        nothing = (None,) * 6
        if ctx.gate.closed:
            fixed = _inverse_std(x, ctx.eps) if ctx.flowing else inverse_std
            factor = fixed if weight is None else weight * fixed
            return grad * per_channel(factor, grad.dim()), None, None, *nothing
        wanted = list(ctx.needs_input_grad[:3])
        gradients = aten.native_batch_norm_backward(
            grad, x, weight, None, None, mean, inverse_std, True, ctx.eps, wanted
        )
        return *(g if want else None for g, want in zip(gradients, wanted, strict=True)), *nothing


def under_saved_tensor_hooks() -> bool:
    """Whether hooks, such as those of activation checkpointing, handle the tensors that this call saves.

    Checkpointing makes the call a second time without the recorder, so neither the other implementation nor
    the gate is used then. It treats the tensors saved by the second call as those of the first.
    """
    return not tracing() and torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def _refuse_recomputation() -> None:
    if under_saved_tensor_hooks():
        raise UnsupportedModelError(
            "Batch norm in training mode is called under saved-tensor hooks (activation checkpointing). "
            "Keep batch norm out of the checkpointed part, or put it into evaluation mode."
        )


def per_channel(factor: Tensor, dims: int) -> Tensor:
    return factor.view(1, -1, *[1] * (dims - 2))


def _inverse_std(x: Tensor, eps: float) -> Tensor:
    x = x.to(at_least_single(x.dtype))
    return torch.rsqrt(x.var(_all_but_channels(x), correction=0) + eps)


def _all_but_channels(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]
