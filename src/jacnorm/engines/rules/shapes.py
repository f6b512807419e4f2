"""Calls that move numbers without changing them: views, axes, indexing, joining, splitting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..tape import Parts, sum_to
from .table import LIST, Call, NoRule, rule


def rearranging(x: Tensor, move: Callable[[Tensor], Tensor]) -> Any:
    """F and Fᵀ of a map that copies each output from one input: slices, flips, repeats, shuffles.

    Moving the positions 0, 1, 2, … shows where each output comes from. Fᵀ adds each cotangent there.
    """
    shape, device = x.shape, x.device
    origin: list[Tensor] = []

    def backward(u: Tensor) -> Tensor:
        if not origin:  # found on first use, since forward mode alone does not need it
            places = torch.arange(shape.numel(), dtype=torch.float64, device=device)
            origin.append(move(places.view(shape)).long().flatten())
        return u.new_zeros(shape.numel()).index_add(0, origin[0], u.flatten()).view(shape)

    return Call(move, backward)


def _reshape(function: Callable[..., Tensor]) -> Any:
    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        shape = x.shape
        return Call(lambda v: function(v, *args, **kwargs), lambda u: u.reshape(shape))

    return apply


for _name in ("flatten", "squeeze", "unsqueeze", "ravel", "reshape"):
    rule(_name, of_complex=True)(_reshape(getattr(Tensor, _name)))


@rule("unflatten", runs=True)
def unflatten(x: Tensor, *args: Any, **kwargs: Any) -> Call:
    """Equal to Tensor.unflatten, which calls super(); dynamo does not follow that."""
    call = _reshape(torch.unflatten)(x, *args, **kwargs)
    call.y = torch.unflatten(x, *args, **kwargs)
    return call


# A tangent may have another memory layout than the activation, so a view of it may need a copy.
rule("view", of_complex=True)(_reshape(Tensor.reshape))
rule("view_as", "reshape_as", like=True)(_reshape(Tensor.reshape_as))


def _permutation(function: Callable[..., Tensor]) -> Any:
    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        # A tensor of shape (0, 1, 2, …) shows where each axis goes.
        order = function(torch.empty(tuple(range(x.dim())), device="cpu"), *args, **kwargs).shape
        back = [order.index(axis) for axis in range(x.dim())]
        return Call(lambda v: v.permute(order), lambda u: u.permute(back))

    return apply


for _name in (
    "permute",
    "transpose",
    "t",
    "swapaxes",
    "swapdims",
    "movedim",
    "moveaxis",
):
    rule(_name, of_complex=True)(_permutation(getattr(Tensor, _name)))
rule("adjoint")(_permutation(Tensor.adjoint))
for _name in ("T", "mT", "H", "mH"):  # two of them take the conjugate
    rule(f"get {_name}", of_complex=_name in ("T", "mT"))(_permutation(getattr(Tensor, _name).__get__))


def _expansion(function: Callable[..., Tensor]) -> Any:
    def apply(x: Tensor, *sizes: Any, **named: Any) -> Any:
        shape = x.shape
        return Call(lambda v: function(v, *sizes, **named), lambda u: sum_to(u, shape))

    return apply


rule("expand", of_complex=True)(_expansion(Tensor.expand))
rule("broadcast_to", of_complex=True)(_expansion(Tensor.broadcast_to))
rule("expand_as", like=True)(_expansion(Tensor.expand_as))


def _move(function: Callable[..., Tensor]) -> Any:
    def apply(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return rearranging(x, lambda v: function(v, *args, **kwargs))

    return apply


for _name in (
    *("index_select", "gather", "take_along_dim", "diagonal", "flip", "fliplr", "flipud", "roll"),
    *("rot90", "repeat", "tile", "repeat_interleave", "select", "narrow"),
):
    rule(_name, of_complex=True)(_move(getattr(Tensor, _name)))
for _name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"):
    rule(_name)(_move(getattr(F, _name)))
rule("Tensor.unfold")(_move(Tensor.unfold))
for _name in ("fftshift", "ifftshift"):
    rule(f"fft_{_name}", of_complex=True)(_move(getattr(torch.fft, _name)))


@rule("__getitem__", of_complex=True)
def index(x: Tensor, where: Any) -> Any:
    if not _basic(where):
        return rearranging(x, lambda v: v[where])
    shape = x.shape

    def backward(u: Tensor) -> Tensor:
        zeros = u.new_zeros(shape)
        zeros[where] = u
        return zeros

    return Call(lambda v: v[where], backward)


@rule("__setitem__", data=3, of_complex=True)
def assign(x: Tensor, where: Any, value: Any) -> Any:
    """x with x[where] replaced by `value`."""
    shape = x.shape
    value_shape = value.shape if isinstance(value, Tensor) else torch.Size()

    def forward(vx: Tensor | None, _: None, vvalue: Tensor | None) -> Tensor:
        known = vx if vx is not None else vvalue
        assert known is not None
        y = known.new_zeros(shape) if vx is None else vx.clone()
        y[where] = 0 if vvalue is None else vvalue
        return y

    def backward(u: Tensor) -> tuple[Tensor, None, Tensor]:
        kept = u.clone()
        kept[where] = 0
        taken = u[where]
        # The value may have more axes than the place it goes to, all of length one.
        fitting = torch.Size(value_shape[max(0, len(value_shape) - taken.dim()) :])
        return kept, None, sum_to(taken, fitting).reshape(value_shape)

    return Call(forward, backward)


@rule("copy", data=2)
def overwrite(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    """x.copy_(source)."""
    shape, source_shape = x.shape, source.shape

    def forward(old: Tensor | None, v: Tensor | None) -> Tensor:
        if v is None:  # a constant comes in
            assert old is not None
            return torch.zeros_like(old)
        return v.expand(shape)

    return Call(forward, lambda u: (None, sum_to(u, source_shape)))


def _joining(join: Callable[..., Tensor], part: Callable[[Tensor, int, int, int], Tensor]) -> Any:
    def apply(tensors: Sequence[Tensor], dim: int = 0, **named: Any) -> Any:
        axis = named.get("axis", dim)
        shapes = [t.shape for t in tensors]
        if len({len(shape) for shape in shapes}) > 1:
            raise NoRule("cat with an empty tensor of another dimension")

        def forward(*vs: Tensor | None) -> Tensor:
            known = next(v for v in vs if v is not None)
            pairs = zip(vs, shapes, strict=True)
            return join([known.new_zeros(s) if v is None else v for v, s in pairs], axis)

        def backward(u: Tensor) -> list[Tensor]:
            lengths = [s[axis] if join is torch.cat else 1 for s in shapes]
            starts = [sum(lengths[:i]) for i in range(len(lengths))]
            return [part(u, axis, a, n) for a, n in zip(starts, lengths, strict=True)]

        return Call(forward, backward)

    return apply


rule("cat", "concat", "concatenate", data=LIST, of_complex=True)(_joining(torch.cat, Tensor.narrow))
rule("stack", data=LIST, of_complex=True)(_joining(torch.stack, lambda u, axis, i, _: u.select(axis, i)))


@rule(
    *(
        "split",
        "chunk",
        "tensor_split",
        "split_with_sizes",
        "unsafe_split",
        "unsafe_chunk",
        "hsplit",
        "vsplit",
    ),
    parts=True,
)
def split(parts: Sequence[Tensor], x: Tensor, _: Any = None, dim: int | None = None, **__: Any) -> Call:
    """F: the same parts of a tangent. Fᵀ: cotangents joined again, zeros where nothing has arrived."""
    if dim is None:  # told by the shapes; else it is the first axis
        dim = next((d for d in range(x.dim()) if parts[0].shape[d] != x.shape[d]), 0)
    lengths, shapes = [p.shape[dim] for p in parts], [p.shape for p in parts]
    return Call(lambda t: Parts(t.split(lengths, dim)), lambda c: torch.cat(_filled(c, shapes), dim))


@rule("unbind", "__iter__", parts=True)
def unbind(parts: Sequence[Tensor], x: Tensor, dim: int = 0) -> Call:
    shapes = [p.shape for p in parts]
    return Call(lambda t: Parts(t.unbind(dim)), lambda c: torch.stack(_filled(c, shapes), dim))


def _filled(c: Parts, shapes: Sequence[torch.Size]) -> list[Tensor]:
    known = next(part for part in c if part is not None)
    return [known.new_zeros(s) if part is None else part for part, s in zip(c, shapes, strict=True)]


def _basic(where: Any) -> bool:
    """Whether an index has only ints, slices, None and `...`, so that no place occurs twice."""
    items = where if isinstance(where, tuple) else (where,)
    return all(i is None or i is ... or type(i) in (int, slice) for i in items)
