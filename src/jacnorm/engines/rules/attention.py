"""Attention: S = s Q Kᵀ + mask, P = softmax S, Y = P V.

The layer stays on its fused kernel, forward and backward. Fᵀ is that kernel's own backward. F, and the
terms of the gradient, are written out for a block of queries at a time, so that memory is linear in the
sequence. With

    tS = s (t_Q Kᵀ + Q t_Kᵀ),  T = tS − ⟨P, tS⟩,  tP = P ⊙ T           F(t) = tP V + P t_V
    dP = c Vᵀ,  D = dP − ⟨P, dP⟩,  dS = P ⊙ D

the gradient of ⟨c, F(t)⟩ is tPᵀ c in V; and with A = D ⊙ T + c t_Vᵀ − ⟨P, D ⊙ T + c t_Vᵀ⟩, G = P ⊙ A, it is
s (dS t_K + G K) in Q and s (dSᵀ t_Q + Gᵀ Q) in K.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...tracing import inside_torch_func, tracing
from ..by_autograd import by_itself
from ..tape import sum_to
from .table import Call, NoRule, rule

BLOCK = 1 << 20  # numbers of P at a time


@rule("scaled_dot_product_attention", data=4, runs=True, product=True)
def attention(
    followed: Sequence[bool],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    if q.dim() < 3 or any(t.dim() != q.dim() for t in (k, v)):
        raise NoRule("attention of tensors without a batch axis")
    kept = None if dropout_p == 0 else _dropped(q, k, dropout_p, enable_gqa)
    layer = Attention(q, k, v, attn_mask, kept, is_causal, scale, enable_gqa)
    run = partial(
        F.scaled_dot_product_attention, is_causal=is_causal, scale=layer.scale, enable_gqa=enable_gqa
    )
    if kept is not None:
        run = partial(_with_dropout, layer=layer)
    learns = attn_mask is not None and (followed[3] or attn_mask.requires_grad)
    reads = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
    if tracing() or inside_torch_func():
        return Call(layer.push, layer.pull, reads, layer.terms, y=run(q, k, v, attn_mask))
    mine = [q, k, v, attn_mask] if learns else [q, k, v]
    own = by_itself(run, (q, k, v, attn_mask), {}, lambda t: any(t is m for m in mine))
    assert own is not None
    places = {id(t): i for i, t in enumerate(own.used)}  # one tensor may be all three
    order = [places.get(id(t)) for t in (q, k, v, attn_mask)]
    graph, (y, _) = own.graph, own.bridged()

    def pull(*values: Any) -> list[Tensor | None]:
        found = list(graph.pull(values[-1]))
        return [None if i is None else _taken(found, i) for i in order]

    return Call(layer.push, pull, reads, layer.terms, y=y)


def _taken(found: list[Tensor | None], i: int) -> Tensor | None:
    """Once: of a tensor that is query and key, say, there is one cotangent."""
    result, found[i] = found[i], None
    return result


def _dropped(q: Tensor, k: Tensor, p: float, enable_gqa: bool) -> Tensor:
    """The factors of dropout: dropping from ones draws the very mask that dropping from P would."""
    shape = (
        *torch.broadcast_shapes(q.shape[:-2], q.shape[:-2] if enable_gqa else k.shape[:-2]),
        q.shape[-2],
        k.shape[-2],
    )
    return F.dropout(torch.ones(shape, dtype=q.dtype, device=q.device), p, True)


def _with_dropout(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, layer: Attention) -> Tensor:
    """Written out, with the mask that was drawn."""
    k, v = layer.repeated(k), layer.repeated(v)
    return torch.cat([r.kept(r.P) @ v for r in layer.blocks(q, k, mask)], -2)


@dataclass(slots=True)
class Rows:
    """A block of queries: where it is, P there, and what dropout leaves of it."""

    at: slice
    P: Tensor
    E: Tensor | None

    def kept(self, t: Tensor) -> Tensor:
        return t if self.E is None else t * self.E

    def centred(self, t: Tensor) -> Tensor:
        """t − ⟨P, t⟩."""
        return t - (self.P * t).sum(-1, keepdim=True)


class Attention:
    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        kept: Tensor | None,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
    ):
        self.scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        self.shapes = [q.shape, k.shape, v.shape]
        self.mask_shape = None if mask is None else mask.shape
        self.is_added = mask is not None and mask.dtype != torch.bool
        self._kept, self._is_causal = kept, is_causal
        self._groups = q.shape[-3] // k.shape[-3] if enable_gqa else 1

    def push(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        mask, tq, tk, tv, tm = self._sorted(rest)
        k, v, tk, tv = (self.repeated(t) for t in (k, v, tk, tv))
        return torch.cat([self._push(r, q, k, v, tq, tk, tv, tm) for r in self.blocks(q, k, mask)], -2)

    def _push(self, r: Rows, q: Tensor, k: Tensor, v: Tensor, tq: Any, tk: Any, tv: Any, tm: Any) -> Tensor:
        tP = r.P * r.centred(self._scores(r, q, k, tq, tk, tm))
        y = r.kept(tP) @ v
        return y if tv is None else y + r.kept(r.P) @ tv

    def pull(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor | None]:
        """Written out, where the fused kernel's own is not at hand."""
        *masks, c = rest
        mask = masks[0] if masks else None
        big_k, big_v = self.repeated(k), self.repeated(v)
        for_q, for_k, for_v = [], torch.zeros_like(big_k), torch.zeros_like(big_v)
        for_mask: list[Tensor] | None = [] if self.is_added else None
        for r in self.blocks(q, big_k, mask):
            cr = c[..., r.at, :]
            dS = r.P * r.centred(r.kept(cr @ big_v.mT))
            for_q.append(dS @ big_k)
            for_k += dS.mT @ q[..., r.at, :]
            for_v += r.kept(r.P).mT @ cr
            if for_mask is not None:
                for_mask.append(dS)
        gathered = self._gathered(torch.cat(for_q, -2) * self.scale, for_k * self.scale, for_v)
        return [*gathered, self._for_mask(for_mask)]

    def terms(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor | None]:
        *masks, c, tq, tk, tv, tm = rest
        mask = masks[0] if masks else None
        k, v, tk, tv = (self.repeated(t) for t in (k, v, tk, tv))
        for_q, for_k, for_v = [], torch.zeros_like(k), torch.zeros_like(v)
        for_mask: list[Tensor] | None = [] if self.is_added else None
        for r in self.blocks(q, k, mask):
            cr, qr = c[..., r.at, :], q[..., r.at, :]
            T = r.centred(self._scores(r, q, k, tq, tk, tm))
            D = r.centred(r.kept(cr @ v.mT))
            for_v += r.kept(r.P * T).mT @ cr
            A = D * T
            if tv is not None:
                A += r.kept(cr @ tv.mT)
            G, dS = r.P * r.centred(A), D.mul_(r.P)
            mine = G @ k
            for_k += G.mT @ qr
            if tk is not None:
                mine += dS @ tk
            if tq is not None:
                for_k += dS.mT @ tq[..., r.at, :]
            for_q.append(mine)
            if for_mask is not None:
                for_mask.append(G)
        found = self._gathered(torch.cat(for_q, -2) * self.scale, for_k * self.scale, for_v)
        return found if mask is None else [*found, self._for_mask(for_mask)]

    def _sorted(self, rest: Sequence[Any]) -> Sequence[Any]:
        return rest if len(rest) == 5 else (None, *rest)

    def _scores(self, r: Rows, q: Tensor, k: Tensor, tq: Any, tk: Any, tm: Any) -> Tensor:
        """tS."""
        pieces = []
        if tq is not None:
            pieces.append(tq[..., r.at, :] @ k.mT)
        if tk is not None:
            pieces.append(q[..., r.at, :] @ tk.mT)
        total = None if not pieces else sum(pieces[1:], pieces[0]) * self.scale
        if tm is not None:
            mine = tm[..., r.at, :] if tm.shape[-2] > 1 else tm
            total = mine.expand_as(r.P) if total is None else total + mine
        return torch.zeros_like(r.P) if total is None else total

    def blocks(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Iterator[Rows]:
        count, keys = q.shape[-2], k.shape[-2]
        rows = max(1, BLOCK * count // max(1, q.shape[:-1].numel() * keys))
        for begin in range(0, count, rows):
            at = slice(begin, min(begin + rows, count))
            S = (q[..., at, :] @ k.mT) * self.scale
            if mask is not None:
                mine = mask[..., at, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask
                S = S + mine if self.is_added else S.masked_fill(~mine, -torch.inf)
            if self._is_causal:
                ahead = torch.ones(at.stop - begin, keys, dtype=torch.bool, device=q.device).triu(begin + 1)
                S = S.masked_fill(ahead, -torch.inf)
            P = torch.softmax(S, -1) if mask is None else torch._safe_softmax(S, -1)
            yield Rows(at, P, None if self._kept is None else self._kept[..., at, :])

    def repeated(self, t: Any) -> Any:
        return t if t is None or self._groups == 1 else t.repeat_interleave(self._groups, -3)

    def _gathered(self, *found: Tensor) -> list[Tensor | None]:
        for_q, for_k, for_v = found
        if self._groups > 1:
            for_k, for_v = (t.unflatten(-3, (-1, self._groups)).sum(-3) for t in (for_k, for_v))
        return [sum_to(t, shape) for t, shape in zip((for_q, for_k, for_v), self.shapes, strict=True)]

    def _for_mask(self, blocks: list[Tensor] | None) -> Tensor | None:
        if blocks is None or self.mask_shape is None:
            return None
        return sum_to(torch.cat(blocks, -2), self.mask_shape)
