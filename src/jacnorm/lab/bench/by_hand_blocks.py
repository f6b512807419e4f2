"""The sweeps of the spectral penalty, written out for the transformers `Blocks` (see `by_hand.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .nets import Block, Blocks

aten = torch.ops.aten
Terms = list[tuple[Tensor, Tensor]]  # a tensor, and the gradient of ⟨c, F(t)⟩ in it


class Calls:
    """The calls of a run: for each its F, its Fᵀ, and its terms for c and t. Activations have numbers."""

    def __init__(self, x: Tensor):
        self.values, self.calls = [x], list[Any]()

    def add(self, y: Tensor, sources: tuple[int, ...], push: Any, pull: Any, terms: Any = None) -> int:
        self.values.append(y)
        self.calls.append((len(self.values) - 1, sources, push, pull, terms))
        return len(self.values) - 1

    def sweeps(self, u: Tensor, factor: float) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """J v for v = factor · Jᵀu/‖Jᵀu‖, the tensors that have a gradient, and their gradients."""
        cotangents, terms = {len(self.values) - 1: u}, dict[int, tuple[Tensor, Tensor]]()
        for target, sources, _, pull, _ in reversed(self.calls):
            for s, c in zip(sources, pull(cotangents[target]), strict=True):
                cotangents[s] = cotangents[s] + c if s in cotangents else c
        v = cotangents.pop(0)
        tangents = {0: v * (factor / v.flatten(1).norm(dim=1)).view(-1, *[1] * (v.dim() - 1))}
        for target, sources, push, _, find in self.calls:
            ts, c = [tangents[s] for s in sources], cotangents.pop(target)
            tangents[target] = push(*ts)
            for where, term in find(c, *ts) if find else ():
                k = id(where)
                terms[k] = (where, terms[k][1] + term if k in terms else term)
        where, found = zip(*terms.values(), strict=True)
        return tangents[len(self.values) - 1], list(where), list(found)


def record(net: Blocks, x: Tensor) -> Calls:
    calls = Calls(x)
    i = _linear(calls, net.first, 0)
    blocks: Any = net.blocks
    for block in blocks:
        qkv = _linear(calls, block.qkv, _norm(calls, block.norm1, i))
        i = _plus(calls, i, _linear(calls, block.out, _attention(calls, block, qkv)))
        wide = _gelu(calls, _linear(calls, block.wide, _norm(calls, block.norm2, i)))
        i = _plus(calls, i, _linear(calls, block.narrow, wide))
    _linear(calls, net.head, _mean(calls, _norm(calls, net.norm, i)))
    return calls


def _linear(calls: Calls, layer: nn.Linear, i: int) -> int:
    W = layer.weight

    def terms(c: Tensor, t: Tensor) -> Terms:
        return [(W, c.flatten(0, -2).t() @ t.flatten(0, -2))]

    return calls.add(layer(calls.values[i]), (i,), lambda t: F.linear(t, W), lambda c: (c @ W,), terms)


def _plus(calls: Calls, i: int, j: int) -> int:
    return calls.add(calls.values[i] + calls.values[j], (i, j), torch.add, lambda c: (c, c))


def _mean(calls: Calls, i: int) -> int:
    shape = calls.values[i].shape
    pull = lambda c: ((c / shape[1])[:, None].expand(shape),)
    return calls.add(calls.values[i].mean(1), (i,), lambda t: t.mean(1), pull)


def _gelu(calls: Calls, i: int) -> int:
    x = calls.values[i]

    def terms(c: Tensor, t: Tensor) -> Terms:
        square = x * x
        bell = torch.exp(square * -0.5).mul_(square.neg_().add_(2)).mul_(1 / math.sqrt(2 * math.pi))
        return [(x, bell.mul_(c).mul_(t))]

    slope: Callable[[Tensor], Tensor] = lambda v: aten.gelu_backward(v, x)
    return calls.add(F.gelu(x), (i,), slope, lambda c: (slope(c),), terms)


def _norm(calls: Calls, norm: nn.LayerNorm, i: int) -> int:
    x, weight, shape = calls.values[i], norm.weight, norm.normalized_shape
    y = norm(x)
    node: Any = y.grad_fn
    mean, r = node._saved_result1, node._saved_result2

    def P(v: Tensor) -> Tensor:
        return aten.native_layer_norm_backward(v, x, shape, mean, r, None, None, [True, False, False])[0]

    def terms(c: Tensor, t: Tensor) -> Terms:
        h, mine, Pt = (x - mean) * r, c * weight, P(t)
        th, ch, q = (t * h).mean(-1, True), (mine * h).mean(-1, True), (mine * Pt).sum(-1, True)
        found = P(th * mine + ch * t).mul_(r).neg_().addcmul_(h, q * r, value=-1 / x.shape[-1])
        return [(x, found), (weight, (c * Pt).flatten(0, -2).sum(0))]

    return calls.add(y, (i,), lambda t: P(t).mul_(weight), lambda c: (P(c * weight),), terms)


def _attention(calls: Calls, block: Block, i: int) -> int:
    qkv = calls.values[i]
    B, N, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    scale, heads = 1 / math.sqrt(width // block.heads), block.heads

    def split(z: Tensor) -> tuple[Tensor, ...]:
        return z.view(B, N, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def merged(parts: Any) -> Tensor:
        return torch.stack(tuple(parts)).permute(1, 3, 0, 2, 4).reshape(B, N, 3 * width)

    def by_head(c: Tensor) -> Tensor:
        return c.view(B, N, heads, -1).transpose(1, 2)

    q, k, v = split(qkv)
    y = F.scaled_dot_product_attention(q, k, v)
    kept: dict[str, Tensor] = {}

    def pull(c: Tensor) -> tuple[Tensor]:
        return (merged(torch.autograd.grad(y, (q, k, v), by_head(c), retain_graph=True)),)

    def push(t: Tensor) -> Tensor:
        P, (tq, tk, tv) = torch.softmax((q @ k.mT).mul_(scale), -1), split(t)
        tS = (tq @ k.mT).add_(q @ tk.mT).mul_(scale)
        tS = tS - (tS * P).sum(-1, True)
        kept.update(P=P, tS=tS, tP=tS * P)
        return (kept["tP"] @ v).add_(P @ tv).transpose(1, 2).reshape(B, N, width)

    def terms(c: Tensor, t: Tensor) -> Terms:
        C, (tq, tk, tv), P, tS = by_head(c), split(t), kept["P"], kept["tS"]
        dP = C @ v.mT
        mean = (dP * P).sum(-1, True)
        dS = (dP - mean).mul_(P)
        A = dP.mul_(tS).addcmul_(tS, mean, value=-1).add_(C @ tv.mT)
        A = A.sub_((A * P).sum(-1, True)).mul_(P)
        in_q = (dS @ tk).add_(A @ k).mul_(scale)
        in_k = (dS.mT @ tq).add_(A.mT @ q).mul_(scale)
        return [(qkv, merged((in_q, in_k, kept["tP"].mT @ C)))]

    return calls.add(y.transpose(1, 2).reshape(B, N, width), (i,), push, pull, terms)
