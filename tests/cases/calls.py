"""Calls: functions and methods of tensors, in their many spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case

ONES = torch.ones(4, dtype=torch.bool)
MASK = torch.tensor([True, False, True, True])
PLACES = torch.tensor([2, 0, 0, 3])
FACTOR = torch.linspace(0.5, 2, 4, dtype=torch.float64)
GATE = torch.complex(*torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 3, 4).sin())
SQUARE = torch.linspace(-1, 1, 16, dtype=torch.float64).view(4, 4)


def _call(name: str, function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Case:
    return Case(name, lambda: function, shape)


def _named(name: str) -> Callable[[Tensor], Tensor]:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


ANYWHERE, POSITIVE, INSIDE, ABOVE = (
    (lambda x: x),
    (lambda x: x.square() + 0.5),
    (lambda x: 0.9 * x.tanh()),
    (lambda x: x.square() + 1.5),
)
# A function of each number by itself, and where it is defined.
SMOOTH = {
    **dict.fromkeys(
        ["square", "sin", "cos", "sinh", "cosh", "atan", "arctan", "asinh", "arcsinh", "erf"], ANYWHERE
    ),
    **dict.fromkeys(["erfc", "tanh", "sigmoid", "exp", "exp2", "expm1", "tan"], ANYWHERE),
    **dict.fromkeys(
        ["special.expm1", "special.exp2", "special.erf", "special.erfc", "special.expit"], ANYWHERE
    ),
    **dict.fromkeys(
        ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "special.log1p"], POSITIVE
    ),
    **dict.fromkeys(["asin", "acos", "atanh", "arcsin", "arccos", "arctanh"], INSIDE),
    **dict.fromkeys(["acosh", "arccosh"], ABOVE),
}


def _assigned(x: Tensor) -> Tensor:
    y = 3 * x
    y[:, 0] = x[:, 1]
    y[:, 2] = 5.0
    return y


def _through_views(x: Tensor) -> Tensor:
    y = x.new_empty(len(x), 2, 3)
    y.transpose(1, 2)[:, :2].copy_(x.sin().view(-1, 2, 2))  # into a fresh tensor
    y[:, :, 2].fill_(3.0)
    z = 2 * x
    z[:, 1:3].mul_(x[:, :2])  # into what depends on x already
    z.t()[0].add_(1).tanh_()
    return torch.cat([y.flatten(1).square(), z.cos()], 1)


def _assigned_row(x: Tensor) -> Tensor:
    y = 3 * x
    y[:, 0] = x[:, 1][None]
    return y


def _spectral(z: Tensor) -> Tensor:
    y = torch.zeros_like(z)
    y[:, :2, 1:] = z[:, :2, 1:] * GATE[:2, :3]
    return torch.fft.irfft(y)


def _plain_batch_norm(x: Tensor) -> Tensor:
    return torch.batch_norm(x, FACTOR, FACTOR, FACTOR, FACTOR, False, 0.1, 1e-5, False)


# Functions of x, of shape (batch, 4, 6), with complex numbers on the way.
FOURIER: dict[str, Callable[[Tensor], Tensor]] = {
    "fft, real part": lambda x: torch.fft.fft(torch.fft.fft(x), dim=1).real.tanh(),
    "fft, imaginary part": lambda x: (
        torch.fft.fft2(x, norm="ortho").imag + torch.fft.fftn(x, dim=(1, 2)).imag
    ),
    "rfft of even and odd lengths": lambda x: torch.cat(
        [torch.view_as_real(torch.fft.rfft(x, n)).flatten(1) for n in (5, 6, 9)], 1
    ),
    "irfft of even and odd lengths": lambda x: torch.cat(
        [torch.fft.irfft(torch.fft.fft(x.sin()), n, norm="forward") for n in (4, 7, None)], 2
    ),
    "rfft2 and back": lambda x: torch.fft.irfft2(torch.fft.rfft2(x, s=(3, 7), norm="ortho") * GATE, s=(5, 6)),
    "rfftn of one axis": lambda x: torch.fft.irfftn(torch.fft.rfftn(x, dim=(1,)), dim=(1,)).square(),
    "long convolution": lambda x: torch.fft.irfft(torch.fft.rfft(x, n=12) * torch.fft.rfft(x.sin(), n=12)),
    "ifft": lambda x: torch.view_as_real(torch.fft.ifft(torch.complex(x, x.sin()), 5, 1, "forward")),
    "ifft2 and ifftn": lambda x: (
        (torch.fft.ifft2(x + 0j) * torch.fft.ifftn(torch.complex(x, x), dim=(1, 2))).imag
    ),
    "shifts": lambda x: torch.fft.irfft(torch.fft.ifftshift(torch.fft.fftshift(torch.fft.rfft(x)).flip(1))),
    "complex matrices": lambda x: torch.view_as_real(
        (z := torch.fft.fft(x)) @ z.mT
        + torch.einsum("bij,bkj->bik", z, z.roll(1, 2))
        - 2 * z[:, :, :4].sum(1)[:, None]
    ),
    "complex vector": lambda x: (torch.fft.fft(x) @ GATE[0].repeat(2)[:6]).real,
    "written to a part": lambda x: _spectral(torch.fft.rfft(x)),
    "squares of real and imaginary parts": lambda x: (z := torch.fft.rfft(x)).real.square() + z.imag.square(),
    "complex without a rule": lambda x: torch.fft.irfft((torch.fft.rfft(x) + 3).abs() * torch.fft.rfft(x)),
    "real times complex": lambda x: torch.fft.irfft(torch.fft.rfft(x) * x[:, :, :4] + x[:, :, :4]),
}


CALLS = [
    *[_call(name, lambda x, name=name: _named(name)(SMOOTH[name](x)), (4,)) for name in SMOOTH],
    _call("products of two", lambda x: x * x.roll(1, 1) + x / (1 + x.square()) + 2 / (1 + x * x), (4,)),
    _call("products of matrices", lambda x: (x @ x.mT) @ x + torch.einsum("bij,bkj->bik", x, x) @ x, (3, 3)),
    _call("baddbmm", lambda x: torch.baddbmm(x, x, x, beta=0.5, alpha=2), (3, 3)),
    _call("addcmul of two", lambda x: torch.addcmul(x, x, x.roll(1, 1), value=0.3), (4,)),
    _call("matrix on the left", lambda x: SQUARE.__matmul__(x) + x.__rmatmul__(SQUARE), (4, 4)),
    _call(
        "powers", lambda x: x.pow(3) + x**2 + (x * x + 1) ** -0.5 + torch.float_power(x * x + 1, 0.5), (4,)
    ),
    _call("quotients", lambda x: 1 / (2 + x.square()) + x.square().add(1).__rtruediv__(2.0), (4,)),
    _call("logsumexp", lambda x: x.logsumexp(-1) + torch.logsumexp(x, (1, 2), keepdim=True)[:, 0], (3, 4)),
    _call(
        "softmax over any axis",
        lambda x: x.softmax(1) + F.softmax(x, dim=-1) + torch.log_softmax(x, 1),
        (3, 4),
    ),
    _call(
        "var, std", lambda x: x.var(-1) + x.std(1) + x.var((1, 2), correction=0, keepdim=True)[:, 0], (3, 3)
    ),
    _call(
        "norms",
        lambda x: x.norm(dim=-1) + torch.linalg.vector_norm(x, dim=1) + x.norm(p=2, dim=(1, 2))[:, None],
        (3, 3),
    ),
    _call("rms_norm", lambda x: F.rms_norm(x, (4,)) + F.rms_norm(x, (3, 4), eps=0.1), (3, 4)),
    _call("in place", lambda x: F.silu((2 * x).sin_(), inplace=True).cos_().mul_(3), (4,)),
    _call("written into after its use", lambda x: (a := 2 * x, a.tanh(), a.mul_(3))[1] + a, (4,)),
    _call("in place without a rule", lambda x: (0.5 * x).i0_() + x, (4,)),
    _call("parts", lambda x: torch.cat([*x.unbind(1)], 1) + x.hsplit(1)[0].flatten(1), (2, 3)),
    _call(
        "numbers alone", lambda x: torch.stack([r.sum().mean().amax() + r[0].sum() for r in x])[:, None], (3,)
    ),
    _call("nothing at all", lambda x: x, (4,)),
    _call("abs", lambda x: x.abs() + abs(x) + torch.absolute(x), (4,)),
    _call("abs_", lambda x: (2 * x).abs_(), (4,)),
    _call("clamp", lambda x: x.clamp(-0.5, 0.7) + torch.clip(x, max=0.2), (4,)),
    _call("clamp by a tensor", lambda x: x.clamp(min=FACTOR - 1), (4,)),
    _call("clamp_min, clamp_max", lambda x: x.clamp_min(0.1) + x.clamp_max(-0.1), (4,)),
    _call("clamp_", lambda x: (x * 1).clamp_(-0.5, 0.7), (4,)),
    _call("functional relu6", lambda x: F.relu6(4 * x), (4,)),
    _call("maximum", lambda x: torch.maximum(x, -2 * x) + torch.max(x, x.flip(1)), (4,)),
    _call("maximum with a constant", lambda x: torch.maximum(x, FACTOR - 1), (4,)),
    _call("minimum", lambda x: torch.minimum(x, x.roll(1, 1)) + torch.fmin(FACTOR - 1, x), (4,)),
    _call("fmax", lambda x: torch.fmax(x, -x), (4,)),
    _call("maximum of ties", lambda x: torch.maximum(x, x), (4,)),
    _call("amax, amin", lambda x: x.amax((1, 2)) + x.amin(-1).sum(1), (3, 4)),
    _call("max over an axis", lambda x: x.max(dim=1).values + x.min(1, keepdim=True)[0][:, 0], (3, 4)),
    _call("sort", lambda x: x.sort(dim=-1, descending=True)[0], (5,)),
    _call("topk", lambda x: torch.topk(x, 2, dim=1)[0], (5,)),
    _call("kthvalue, median", lambda x: x.kthvalue(2)[0] + x.median(-1)[0], (2, 5)),
    _call("arithmetic", lambda x: 1 - (2 * x + x * FACTOR - 3) / 4 + (-x) - x / FACTOR, (4,)),
    _call("add with alpha", lambda x: torch.add(x, x, alpha=3) + torch.sub(FACTOR, x, alpha=2), (4,)),
    _call("broadcasting", lambda x: x[:, :1, None] + x[:, None, :] - FACTOR * x[:, :, None], (4,)),
    _call("rsub", lambda x: torch.rsub(x, 2 * x), (4,)),
    _call("in-place arithmetic", lambda x: x.clone().mul_(2).add_(x).sub_(1).div_(3).neg_(), (4,)),
    _call("a constant times x in place", lambda x: FACTOR.repeat(len(x), 1).mul_(x).add_(1) + x, (4,)),
    _call("contiguous", lambda x: x.mT.contiguous() + (+x).mT, (3, 4)),
    _call("t", lambda x: x.t().t(), (4,)),
    _call("sum", lambda x: x.sum(1) + x.sum(dim=(1,), keepdim=True)[:, 0] + x.sum(-2), (3, 4)),
    _call("mean", lambda x: x.mean((1, -1)) + torch.mean(x, 2, keepdim=True)[:, 0, 0], (3, 4)),
    _call("cumsum", lambda x: x.cumsum(1), (4,)),
    _call("where", lambda x: torch.where(x > 0, x, 0.1 * x) + torch.where(ONES, FACTOR, x), (4,)),
    _call("where with a number", lambda x: torch.where(x > 0, x, 0.0), (4,)),
    _call("masked_fill", lambda x: x.masked_fill(~MASK, 7.0), (4,)),
    _call("tril, triu", lambda x: x.tril() + x.triu(1), (3, 4)),
    _call(
        "views",
        lambda x: x.view(-1, 6).reshape(len(x), 3, 2).flatten(1).unsqueeze(2).squeeze(2),
        (6,),
    ),
    _call("view_as, ravel", lambda x: x.reshape(-1).view_as(x) + torch.ravel(x).reshape_as(x), (4,)),
    _call("permute", lambda x: x.permute(0, 2, 1).transpose(1, 2).movedim(1, 2), (3, 4)),
    _call("swapaxes", lambda x: x.swapaxes(1, 2).swapdims(1, 2).moveaxis(2, 1), (3, 4)),
    _call("mT", lambda x: x.mT.adjoint(), (3, 4)),
    _call("T", lambda x: x.T.T + x.H.H, (4,)),
    _call("mH", lambda x: x.mH, (3, 4)),
    _call("expand", lambda x: x[:, :1].expand(-1, 3, 4) + x[:, :1].expand_as(x), (3, 4)),
    _call("broadcast_to", lambda x: torch.broadcast_to(x[:, None], (len(x), 2, 4)), (4,)),
    _call("index", lambda x: torch.cat([x[:, 1:], x[..., ::2], x[:, PLACES], x[:, MASK]], 1), (4,)),
    _call(
        "index_select, gather",
        lambda x: x.index_select(1, PLACES) + x.gather(1, PLACES.expand(len(x), 4)),
        (4,),
    ),
    _call("take_along_dim", lambda x: x.take_along_dim(PLACES.expand(len(x), 4), 1), (4,)),
    _call("select, narrow", lambda x: x.select(1, 2) + x.narrow(1, 0, 1)[:, 0], (4,)),
    _call("diagonal", lambda x: x.diagonal(dim1=1, dim2=2), (3, 3)),
    _call("flip, roll, rot90", lambda x: x.flip(1).roll(1, 2) + x.rot90(2, (1, 2)), (3, 3)),
    _call("fliplr", lambda x: torch.fliplr(x), (4,)),
    _call("repeats", lambda x: x.repeat(1, 2) + x.tile(2) + x.repeat_interleave(2, 1), (4,)),
    _call("Tensor.unfold", lambda x: x.unfold(1, 3, 2), (7,)),
    _call("stack", lambda x: torch.stack([x, 2 * x, FACTOR.expand_as(x)], dim=1), (4,)),
    _call("concat", lambda x: torch.concat((x, FACTOR.expand_as(x), -x), dim=-1), (4,)),
    _call("concatenate", lambda x: torch.concatenate((x, -x), axis=1), (4,)),
    _call("chunk, split", lambda x: x.chunk(2, 1)[1] * 2 + torch.split(x, [1, 3], dim=-1)[0], (4,)),
    _call("tensor_split, unbind", lambda x: x.tensor_split(3, 1)[0] + x.unbind(1)[2][:, None], (6,)),
    _call("written through views", lambda x: _through_views(x), (4,)),
    _call("assignment", lambda x: _assigned(x), (4,)),
    _call("pad", lambda x: F.pad(x, (1, -1, 2, 0), value=3.0), (3, 4)),
    _call("constant_pad_nd", lambda x: torch.constant_pad_nd(x, (1, -1, 2, 0), 3.0), (3, 4)),
    _call("bicubic", lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"), (2, 4, 3)),
    _call(
        "bilinear to a size",
        lambda x: F.interpolate(x, (5, 3), mode="bilinear", align_corners=True),
        (2, 4, 6),
    ),
    _call(
        "bilinear recomputed",
        lambda x: F.interpolate(x, scale_factor=1.3, mode="bilinear", recompute_scale_factor=True),
        (2, 4, 6),
    ),
    _call("linear interpolation", lambda x: F.interpolate(x, scale_factor=2.5, mode="linear"), (2, 4)),
    _call("trilinear", lambda x: F.interpolate(x, 3, mode="trilinear"), (1, 2, 2, 4)),
    _call(
        "nearest-exact",
        lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest-exact"),
        (2, 4, 3),
    ),
    _call("matmul", lambda x: x @ FACTOR[:, None] + torch.mv(x, FACTOR)[:, None], (4,)),
    _call("bmm", lambda x: torch.bmm(x, torch.ones(len(x), 4, 2, dtype=x.dtype)), (3, 4)),
    _call("mm", lambda x: torch.mm(x, FACTOR.diag()) + torch.matmul(x, FACTOR.diag()), (4,)),
    _call("one tensor joined", lambda x: torch.cat([x], 1) + torch.stack([x])[0], (4,)),
    _call("Tensor.where", lambda x: x.where(x > 0, 0.0) + FACTOR.where(MASK, x), (4,)),
    _call("where broadcasting", lambda x: torch.where(MASK, x[:, :1], torch.zeros(4).double()), (4,)),
    _call("where, named", lambda x: torch.where(condition=x > 0, input=x, other=2 * x), (4,)),
    _call("axis and keepdims", lambda x: x.sum(axis=1) + x.mean(axis=1, keepdims=True)[:, 0], (3, 4)),
    _call("max along axis", lambda x: x.max(axis=1)[0] + x.amax(axis=1), (3, 4)),
    _call("named other", lambda x: torch.add(x, other=2 * x).mul(other=FACTOR), (4,)),
    _call("assigned with a leading axis", lambda x: _assigned_row(x), (4,)),
    _call("rounded to int", lambda x: x + x.to(torch.int64) + (x > 0).to(x), (4,)),
    _call("torch.batch_norm", lambda x: _plain_batch_norm(x), (4,)),
    _call("addcmul", lambda x: torch.addcmul(FACTOR, x, FACTOR, value=3), (4,)),
    _call("addcmul of a constant", lambda x: torch.addcmul(x[:, :1], FACTOR, FACTOR), (4,)),
    _call("addcmul to a larger shape", lambda x: torch.addcmul(FACTOR, FACTOR[:1], x[:, :1]), (4,)),
    _call("addmm", lambda x: torch.addmm(FACTOR, x, FACTOR.diag(), alpha=2), (4,)),
    _call("keyword arguments", lambda x: torch.relu(input=x) + torch.mul(input=x, other=FACTOR), (4,)),
    _call("max_pool with indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (2, 4, 4)),
    *[_call(name, function, (4, 6)) for name, function in FOURIER.items()],
    _call("straight through", lambda x: x + (x.round() - x).detach() + x * torch.sign(x), (4,)),
    _call("steps", lambda x: x * x.floor() + x.ceil() - x * x.trunc().sgn(), (4,)),
    _call("constants", lambda x: x * x.detach().sign() + torch.ones_like(x) + x.shape[1], (4,)),
]
