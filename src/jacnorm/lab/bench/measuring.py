"""Measuring σ of many images, compared with `torch.func.jacrev` and `svdvals`."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from ... import linearize, spectral_norm
from ..progress import progress
from .nets import make

TOLERANCE = 1e-3
CHUNK = 250  # images at a time, in our way
BYTES = 1 << 28  # of dense Jacobians at a time, in the other way


def speedup(outputs: int, images: int) -> dict[str, float]:
    """How many times faster our way is on a LeNet with `outputs` classes, and how much the answers differ."""
    net = make("lenet", outputs).eval()
    x = torch.randn(images, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    theirs_at_once = max(1, BYTES // (4 * outputs * 784))
    parts = max(1, images // CHUNK)
    ratios, furthest = [], 0.0
    with progress(parts, f"measuring, {outputs} outputs", " parts") as bar:
        for part in x.chunk(parts):
            ours, our_seconds = _timed(lambda p: _ours(net, p), part, CHUNK)
            theirs, their_seconds = _timed(lambda p: _theirs(net, p), part, theirs_at_once)
            ratios.append(their_seconds / our_seconds)
            furthest = max(furthest, float(((ours - theirs) / theirs).abs().max()))
            bar.update()
    return {"outputs": outputs, "images": images, "speedup": median(ratios), "largest_difference": furthest}


@torch.no_grad()
def _ours(net: nn.Module, x: Tensor) -> Tensor:
    return spectral_norm(linearize(net, x), tol=TOLERANCE).sigma


@torch.no_grad()
def _theirs(net: nn.Module, x: Tensor) -> Tensor:
    dense = vmap(jacrev(lambda image: net(image[None])[0]))(x)
    return torch.linalg.svdvals(dense.flatten(2))[:, 0]


def _timed(way: Callable[[Tensor], Tensor], x: Tensor, at_once: int) -> tuple[Tensor, float]:
    begin = time.thread_time()
    found = torch.cat([way(part) for part in x.split(at_once)])
    return found, time.thread_time() - begin
