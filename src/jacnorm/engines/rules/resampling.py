"""Padding and interpolation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .shapes import rearranging
from .table import Call, NoRule, rule

aten = torch.ops.aten
TRANSPOSED = {
    "linear": aten.upsample_linear1d_backward,
    "bilinear": aten.upsample_bilinear2d_backward,
    "bicubic": aten.upsample_bicubic2d_backward,
    "trilinear": aten.upsample_trilinear3d_backward,
}


@rule("pad")
def pad(x: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """F: padding with zeros. Fᵀ: removing the padding. Fᵀ adds reflected or repeated rows to their source."""
    if mode == "constant":
        cut = [-p for p in pad]
        return Call(lambda v: F.pad(v, pad), lambda u: F.pad(u, cut))
    return rearranging(x, lambda v: F.pad(v, pad, mode))


@rule("constant_pad_nd")
def constant_pad(x: Tensor, padding: Any, value: float = 0) -> Any:
    return pad(x, padding)


@rule("interpolate", "upsample")
def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    if antialias or mode == "area":
        raise NoRule(f"interpolation with mode={mode!r}, antialias={antialias}")
    options = (size, scale_factor, mode, align_corners, recompute_scale_factor)

    def forward(v: Tensor) -> Tensor:
        return F.interpolate(v, *options)

    if mode in ("nearest", "nearest-exact"):
        return rearranging(x, forward)
    scales = _scales(scale_factor, x.dim() - 2, recompute_scale_factor)

    def backward(u: Tensor) -> Tensor:
        channels = [x_shape[0], x_shape[1]]
        return TRANSPOSED[mode](u, u.shape[2:], channels + x_shape[2:], bool(align_corners), *scales)

    x_shape = list(x.shape)
    return Call(forward, backward)


def _scales(scale_factor: Any, dims: int, recompute: bool | None) -> list[float | None]:
    """The scales to pass to the kernels; None if they compute them from the sizes."""
    if scale_factor is None or recompute:
        return [None] * dims
    return list(scale_factor) if isinstance(scale_factor, list | tuple) else [scale_factor] * dims
