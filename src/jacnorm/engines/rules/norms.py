"""Layer, group, instance and RMS norm, variances and Euclidean norms.

With h = (x − mean) r and r = 1/√(var + ε), the derivative of h is P(v) = r (v − mean v − h mean(h v)),
which is its own transpose. With c′ = γ c, the gradient of ⟨c, γ P(t)⟩ in x is
−r (mean(t h) P(c′) + mean(c′ h) P(t) + mean(c′ P(t)) h). RMS norm is the same without the means of x and v.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...pytorch.precision import HALF, at_least_single, is_autocast
from ...pytorch.tracing import inside_torch_func, tracing
from .arithmetic import axes_of, insert_axes
from .table import Call, NoRule, rule

aten = torch.ops.aten


class Standardized:
    """h = (x − mean) r over the last `axes` of x, and its derivative P."""

    def __init__(
        self, axes: int, eps: float, centred: bool = True, mean: Tensor | None = None, r: Tensor | None = None
    ):
        self.axes, self.eps, self.centred = axes, eps, centred
        self._mean, self._r = mean, r  # of each row, where the layer has told

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if tracing():  # compiled code may not keep anything here, and finds what is the same itself
            return self._found(x)
        if self._mean is None or self._r is None:
            self._mean, self._r = self._found(x)
        return self._mean, self._r

    def _found(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.centred:
            _, mean, r = aten.native_layer_norm(x, x.shape[-self.axes :], None, None, self.eps)
            return mean, r
        r = torch.rsqrt(x.square().mean(list(range(-self.axes, 0)), keepdim=True) + self.eps)
        return torch.zeros_like(r), r

    def h(self, x: Tensor) -> Tensor:
        mean, r = self.statistics(x)
        return (x - mean).mul_(r) if self.centred else x * r

    def derivative(self, x: Tensor, v: Tensor) -> Tensor:
        """P(v)."""
        kind, x, v = v.dtype, x.to(at_least_single(x.dtype)), v.to(at_least_single(v.dtype))
        mean, r = self.statistics(x)
        if self.centred:
            shape = x.shape[-self.axes :]
            return aten.native_layer_norm_backward(
                v.contiguous(), x, shape, mean, r, None, None, [True, False, False]
            )[0].to(kind)
        h, over = x * r, list(range(-self.axes, 0))
        return torch.addcmul(v, h, (h * v).mean(over, keepdim=True), value=-1).mul_(r).to(kind)

    def term(self, x: Tensor, c: Tensor, t: Tensor, pushed: Tensor) -> Tensor:
        """The gradient of ⟨c, P(t)⟩ in x; `pushed` is P(t)."""
        over, kind = list(range(-self.axes, 0)), c.dtype
        x, c, t, pushed = (a.to(at_least_single(a.dtype)) for a in (x, c, t, pushed))
        _, r = self.statistics(x)
        h = self.h(x)
        th, ch, q = ((a * b).mean(over, keepdim=True) for a, b in ((t, h), (c, h), (c, pushed)))
        if self.centred:
            found = self.derivative(x, c).mul_(-r * th)
        else:  # P(c) is r (c − ch h)
            found, q = c * (-r * r * th), q - r * th * ch
        return found.addcmul_(pushed, -r * ch).addcmul_(h, -r * q).to(kind)


def _normalized(
    x: Tensor, weight: Tensor | None, norm: Standardized, rows: Callable[[Tensor], Tensor], spread: Any = None
) -> Call:
    """γ P on the rows of x. `spread` shapes γ to multiply x, if it must be."""
    shape = x.shape

    def scaled(gamma: Tensor | None, v: Tensor) -> Tensor:
        if gamma is None:
            return v
        return v * (gamma if spread is None else gamma.view(spread))

    def p(x: Tensor, v: Tensor) -> Tensor:
        return norm.derivative(rows(x), rows(v)).view(shape)

    def push(x: Tensor, *rest: Tensor) -> Tensor:
        *gamma, t = rest
        return scaled(gamma[0] if gamma else None, p(x, t))

    def pull(x: Tensor, *rest: Tensor) -> Tensor:
        *gamma, c = rest
        return p(x, scaled(gamma[0] if gamma else None, c))

    def meet(x: Tensor, *rest: Tensor) -> tuple[Tensor, list[Tensor]]:
        *gamma, c, t = rest
        pushed = norm.derivative(rows(x), rows(t))
        mine = scaled(gamma[0] if gamma else None, c)
        found = [norm.term(rows(x), rows(mine), rows(t), pushed).view(shape)]
        pushed = pushed.view(shape)
        if not gamma:
            return pushed, found
        like = gamma[0] if spread is None else gamma[0].view(spread)
        found.append((c * pushed).sum_to_size(like.shape).view_as(gamma[0]))
        return pushed * like, found

    reads = (x,) if weight is None else (x, weight)
    return Call(push, pull, reads, lambda *values: meet(*values)[1], meet)


@rule("layer_norm", runs=True)
def layer_norm(
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
    **__: Any,
) -> Call:
    y = torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)
    call = _normalized(x, weight, Standardized(len(normalized_shape), eps, True, *_told(y)), lambda v: v)
    call.y = y
    return call


def _told(y: Tensor) -> tuple[Tensor, ...]:
    """The mean and r that the layer's own node has kept, in the precision that sweeps take. (Of a model in
    half precision they can be in half precision, too, which is not enough.)"""
    if tracing() or inside_torch_func() or is_autocast(y.device.type) or y.dtype in HALF:
        return ()
    node: Any = y.grad_fn
    if node is None or node.name() != "NativeLayerNormBackward0":
        return ()
    return node._saved_result1, node._saved_result2


@rule("rms_norm")
def rms_norm(
    x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Call:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _normalized(x, weight, Standardized(len(normalized_shape), eps, False), lambda v: v)


@rule("group_norm")
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
    **__: Any,
) -> Call:
    groups = len(x), num_groups, -1
    spread = (-1, *[1] * (x.dim() - 2))
    return _normalized(x, weight, Standardized(1, eps), lambda v: v.reshape(groups), spread)


@rule("instance_norm")
def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Call:
    if use_input_stats:
        return group_norm(x, x.shape[1], weight, bias, eps)
    if running_var is None:
        raise NoRule("instance norm without statistics")
    spread = (-1, *[1] * (x.dim() - 2))
    scale = torch.rsqrt(running_var + eps).view(spread)
    if weight is None:
        return Call(lambda t: t * scale, lambda c: c * scale)

    def scaled(weight: Tensor, v: Tensor) -> Tensor:
        return v * (scale * weight.view(spread))

    def terms(weight: Tensor, c: Tensor, t: Tensor) -> list[Tensor]:
        return [(c * t * scale).sum_to_size(scale.shape).view_as(weight)]

    return Call(scaled, scaled, (weight,), terms)


@rule("var")
def variance(x: Tensor, *args: Any, **kwargs: Any) -> Call:
    """F: 2⟨x − mean, t⟩/N. Fᵀ: 2 c (x − mean)/N."""
    axes, keepdim, count = _about_variance(x, args, kwargs)

    def deviation(x: Tensor) -> Tensor:
        return (x - x.mean(axes, keepdim=True)) * (2 / count)

    return Call(
        lambda x, t: (deviation(x) * t).sum(axes, keepdim=keepdim),
        lambda x, c: (c if keepdim else insert_axes(c, axes)) * deviation(x),
        (x,),
        lambda x, c, t: [(c if keepdim else insert_axes(c, axes)) * deviation(t)],
    )


@rule("std", runs=True)
def standard_deviation(x: Tensor, *args: Any, **kwargs: Any) -> Call:
    """With y = √var, F: ⟨x − mean, t⟩/(N y)."""
    axes, keepdim, count = _about_variance(x, args, kwargs)
    y = torch.std(x, *args, **kwargs)

    def centred(x: Tensor) -> Tensor:
        return (x - x.mean(axes, keepdim=True)) / count

    def whole(c: Tensor) -> Tensor:
        return c if keepdim else insert_axes(c, axes)

    def push(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        return (centred(x) * t).sum(axes, keepdim=keepdim) / y

    return Call(
        push,
        lambda x, y, c: whole(c / y) * centred(x),
        (x, y),
        lambda x, y, c, t: [whole(c / y) * centred(t), -c * push(x, y, t) / y],
        y=y,
    )


def _about_variance(x: Tensor, args: Any, kwargs: Any) -> tuple[list[int], bool, float]:
    """The axes, whether they are kept, and the divisor."""
    names = dict(kwargs)
    dim, rest = names.pop("dim", None), list(args)
    correction: Any = names.pop("correction", None)
    if rest and not isinstance(rest[0], bool):
        dim = rest.pop(0)
    if "unbiased" in names or rest:
        correction = 1 if names.pop("unbiased", rest.pop(0) if rest else True) else 0
    keepdim = bool(names.pop("keepdim", rest.pop(0) if rest else False))
    if names or rest:
        raise NoRule("a variance with arguments that are not known")
    axes = axes_of(dim, x.dim())
    count = torch.Size(x.shape[a] for a in axes).numel() - (1 if correction is None else correction)
    if count <= 0:
        raise NoRule("a variance of too few numbers")
    return axes, keepdim, count


@rule("vector_norm", "linalg_vector_norm", runs=True)
def vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Call:
    """y = (Σ|x|ᵖ)^(1/p). With w = |x|ᵖ⁻¹ sign x, F: ⟨w, t⟩ y^(1−p), and zero at zero, as autograd has it."""
    p = float(ord)
    if dtype is not None or not x.is_floating_point():
        raise NoRule("a norm in another precision, or of complex numbers")
    axes = axes_of(dim, x.dim())
    y = torch.linalg.vector_norm(x, p, dim, keepdim)

    def whole(c: Tensor) -> Tensor:
        return c if keepdim else insert_axes(c, axes)

    if p in (0, 1, math.inf, -math.inf):
        slope = _slope_of_norm(x, whole(y), p, axes)
        return Call(lambda t: (slope * t).sum(axes, keepdim=keepdim), lambda c: whole(c) * slope, y=y)

    def weights(x: Tensor) -> Tensor:
        return x if p == 2 else x.sign() * x.abs() ** (p - 1)

    def bent(x: Tensor, t: Tensor) -> Tensor:
        return t if p == 2 else (p - 1) * x.abs() ** (p - 2) * t

    def scaled(c: Tensor, y: Tensor) -> Tensor:
        return torch.where(y == 0, 0, c / y if p == 2 else c * y ** (1 - p))

    def push(x: Tensor, y: Tensor, t: Tensor) -> Tensor:
        return scaled((weights(x) * t).sum(axes, keepdim=keepdim), y)

    return Call(
        push,
        lambda x, y, c: whole(scaled(c, y)) * weights(x),
        (x, y),
        lambda x, y, c, t: [
            whole(scaled(c, y)) * bent(x, t),
            torch.where(y == 0, 0, (1 - p) * c * push(x, y, t) / y),
        ],
        y=y,
    )


def _slope_of_norm(x: Tensor, y: Tensor, p: float, axes: list[int]) -> Tensor:
    """The slope of ‖x‖ₚ if it is piecewise linear. All entries that attain the maximum share it equally."""
    if p == 0:
        return torch.zeros_like(x)
    sign = x.detach().sign()
    if p == 1:
        return sign
    best = (x.detach().abs() == y).to(x.dtype)
    return sign * best / best.sum(axes, keepdim=True)
