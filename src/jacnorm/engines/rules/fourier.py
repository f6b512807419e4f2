"""Fourier transforms, and conversions between real and complex numbers.

All are linear over the real numbers. Complex cotangents follow autograd's convention: the product of c and t
is the real part of Σ conj(c) t, so Fᵀ of a complex matrix is its conjugate transpose. Fᵀ of a transform is
the inverse transform up to its scale. A real transform omits the frequencies that mirror others. In its Fᵀ
the mirrored frequencies count once, not twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .table import Call, NoRule, rule

fft = torch.fft
BACK = {"fft": fft.ifftn, "ifft": fft.fftn, "rfft": fft.irfftn, "irfft": fft.rfftn}
OTHER_NORM = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def _transform(function: Callable[..., Tensor], kind: str, usual: Any) -> Any:
    """The rule of a transform. `usual` are its default axes."""

    def apply(x: Tensor, s: Any = None, dim: Any = usual, norm: str | None = None, *, n: Any = None) -> Call:
        s = n if s is None else s
        y, shape, is_real = function(x, s, dim, norm), x.shape, not x.is_complex()
        axes = _axes(s, dim, x.dim())
        sizes = [y.shape[a] for a in axes]
        if kind == "rfft":
            sizes[-1] = x.shape[axes[-1]] if s is None else _listed(s)[-1]

        def pull(c: Tensor) -> Tensor:
            if kind == "rfft":
                c = _scaled_inside(c, axes[-1], sizes[-1], 0.5)
            back = BACK[kind](c, sizes, axes, OTHER_NORM[norm])
            if kind == "irfft":
                back = _scaled_inside(back, axes[-1], sizes[-1], 2.0)
            back = _fitted(back, shape)
            return back.real if is_real and back.is_complex() else back

        return Call(lambda t: function(t, s, dim, norm), pull, y=y)

    return apply


for _kind in BACK:
    for _suffix, _usual in (("", -1), ("2", (-2, -1)), ("n", None)):
        _made = _transform(getattr(fft, _kind + _suffix), _kind, _usual)
        rule(f"fft_{_kind}{_suffix}", runs=True, of_complex=True)(_made)


def _listed(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


def _axes(s: Any, dim: Any, dims: int) -> list[int]:
    if dim is None:
        return list(range(dims))[0 if s is None else -len(s) :]
    return [a % dims for a in _listed(dim)]


def _scaled_inside(c: Tensor, axis: int, length: int, factor: float) -> Tensor:
    """The frequencies that have a mirror image, times this."""
    scale = c.real.new_full((c.shape[axis],), factor)
    scale[0] = 1
    if length % 2 == 0:
        scale[length // 2 :] = 1
    return c * scale.view(-1, *[1] * (c.dim() - 1 - axis))


def _fitted(c: Tensor, shape: torch.Size) -> Tensor:
    """Cut off, or filled with zeros, along each axis."""
    if c.shape == shape:
        return c
    common = tuple(slice(min(m, n)) for m, n in zip(c.shape, shape, strict=True))
    whole = c.new_zeros(shape)
    whole[common] = c[common]
    return whole


@rule("get real", of_complex=True)
def real_part(x: Tensor) -> Call:
    if not x.is_complex():
        raise NoRule("the real part of real numbers")
    return Call(lambda v: v.real, lambda c: torch.complex(c, torch.zeros_like(c)))


@rule("get imag", "imag", of_complex=True)
def imaginary_part(x: Tensor) -> Call:
    if not x.is_complex():
        raise NoRule("the imaginary part of real numbers")
    return Call(lambda v: v.imag, lambda c: torch.complex(torch.zeros_like(c), c))


@rule("view_as_real", of_complex=True)
def as_pairs(x: Tensor) -> Call:
    return Call(
        lambda v: torch.view_as_real(v.resolve_conj()), lambda c: torch.view_as_complex(c.contiguous())
    )


@rule("view_as_complex", of_complex=True)
def from_pairs(x: Tensor) -> Call:
    return Call(
        lambda v: torch.view_as_complex(v.contiguous()), lambda c: torch.view_as_real(c.resolve_conj())
    )


@rule("complex", data=2, of_complex=True)
def from_parts(x: Tensor, y: Tensor) -> Call:
    if x.shape != y.shape:
        raise NoRule("parts of different shapes")

    def push(tx: Tensor | None, ty: Tensor | None) -> Tensor:
        known: Sequence[Any] = [t for t in (tx, ty) if t is not None]
        return torch.complex(*[torch.zeros_like(known[0]) if t is None else t for t in (tx, ty)])

    return Call(push, lambda c: [c.real, c.imag])
