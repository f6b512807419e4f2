"""Attention: S = s Q Kᵀ + mask, P = softmax S, Y = P V.

The layer keeps its fused kernel, forward and backward. Fᵀ is the backward pass of that kernel. F and the
terms of the gradient are computed for one block of queries at a time, so memory is linear in the length of
the sequence. With

    tS = s (t_Q Kᵀ + Q t_Kᵀ),  tP = P ⊙ (tS − ⟨P, tS⟩)           F(t) = tP V + P t_V
    dP = c Vᵀ,  D = dP − ⟨c, Y⟩,  dS = P ⊙ D

the gradient of ⟨c, F(t)⟩ is tPᵀ c in V; and with G = D ⊙ tP + P ⊙ (c t_Vᵀ − ⟨c, F(t)⟩) it is
s (dS t_K + G K) in Q and s (dSᵀ t_Q + Gᵀ Q) in K. (⟨c, Y⟩ is one number per query. Queries and their
tangents are scaled by s first. The kernel keeps ln Σ exp S, which makes P one exponential.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...pytorch.precision import HALF
from ...pytorch.tracing import inside_torch_func, tracing
from ..by_autograd import by_itself
from ..tape import sum_to
from .table import Call, NoRule, rule

BLOCK = 1 << 18  # numbers of P at a time


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
    run: Any = partial(
        F.scaled_dot_product_attention, is_causal=is_causal, scale=layer.scale, enable_gqa=enable_gqa
    )
    if kept is not None:
        run = layer.layer
    learns = attn_mask is not None and (followed[3] or attn_mask.requires_grad)
    reads = (q, k, v) if attn_mask is None else (q, k, v, attn_mask)
    if tracing() or inside_torch_func():
        return Call(layer.push, layer.pull, reads, layer.terms, meet=layer.meet, y=run(q, k, v, attn_mask))
    mine = [q, k, v, attn_mask] if learns else [q, k, v]
    own = by_itself(run, (q, k, v, attn_mask), {}, lambda t: any(t is m for m in mine))
    assert own is not None
    places = {id(t): i for i, t in enumerate(own.used)}  # one tensor may be all three
    order = [places.get(id(t)) for t in (q, k, v, attn_mask)]
    graph, (y, _), dtype = own.graph, own.bridged(), q.dtype
    if attn_mask is None and kept is None and q.dtype in (torch.float32, torch.float64):
        layer.node = graph.behind

    def pull(*values: Any) -> list[Tensor | None]:
        if values[-1].dtype != dtype:  # sweeps in half precision
            return layer.pull(*values)
        found = list(graph.pull(values[-1]))
        return [None if i is None else _taken(found, i) for i in order]

    return Call(layer.push, pull, reads, layer.terms, meet=layer.meet, y=y)


def _taken(found: list[Tensor | None], i: int) -> Tensor | None:
    """The i-th cotangent, and then None: a tensor that is query and key, for example, has one cotangent."""
    result, found[i] = found[i], None
    return result


def _dropped(q: Tensor, k: Tensor, p: float, enable_gqa: bool) -> Tensor:
    """The factors of dropout. Dropout of ones draws the same mask as dropout of P."""
    shape = (
        *torch.broadcast_shapes(q.shape[:-2], q.shape[:-2] if enable_gqa else k.shape[:-2]),
        q.shape[-2],
        k.shape[-2],
    )
    return F.dropout(torch.ones(shape, dtype=q.dtype, device=q.device), p, True)


@dataclass(slots=True)
class Rows:
    """A block of queries: its position, P there, and its dropout factors."""

    at: slice
    P: Tensor
    E: Tensor | None

    def kept(self, t: Tensor) -> Tensor:
        return t if self.E is None else t * self.E.to(t.dtype)

    def softened(self, t: Tensor) -> Tensor:
        """P ⊙ (t − ⟨P, t⟩): the derivative of softmax, and its own transpose."""
        return torch.ops.aten._softmax_backward_data(t, self.P, -1, self.P.dtype)


class Attention:
    """The products of attention. Inside, q, k and v have one batch axis for samples and heads together."""

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
        self._groups = q.shape[-3] // k.shape[-3] if enable_gqa else 1
        heads = {t.shape[:-2] for t in (q, k, v)}
        self.batch = q.shape[:-2] if enable_gqa or len(heads) == 1 else torch.broadcast_shapes(*heads)
        self._kept, self._is_causal = None if kept is None else kept.flatten(0, -3), is_causal
        self.node: Callable[[], Any] = lambda: None  # the kernel's node, which may have kept Y and ln Σ exp S

    def layer(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The layer itself, with the dropout that was drawn."""
        q, k, v = self._flat(q, k, v)
        y = torch.cat([r.kept(r.P) @ v for r in self._blocks(q * self.scale, k, mask)], 1)
        return y.view(*self.batch, *y.shape[1:])

    def push(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        mask, tq, tk, tv, tm = rest if len(rest) == 5 else (None, *rest)
        q, k, v, tq, tk, tv = self._flat(q, k, v, tq, tk, tv)
        q, tq = self._scaled(q, tq)
        y = torch.cat(
            [self._pushed(r, self._tangent(r, q, k, tq, tk, tm), v, tv) for r in self._blocks(q, k, mask)], 1
        )
        return y.view(*self.batch, *y.shape[1:])

    def terms(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor | None]:
        return self.meet(q, k, v, *rest)[1]

    def meet(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, list[Tensor | None]]:
        mask, c, tq, tk, tv, tm = rest if len(rest) == 6 else (None, *rest)
        q, k, v, c, tq, tk, tv = self._flat(q, k, v, c, tq, tk, tv)
        q, tq = self._scaled(q, tq)
        sums, Y = Sums(q, k, v), self._told("_saved_output", q)
        ys: list[Tensor] = []  # in a form that dynamo follows
        masks: list[Tensor] | None = [] if self.is_added else None
        for r in self._blocks(q, k, mask):
            cr, tP = c[:, r.at], self._tangent(r, q, k, tq, tk, tm)
            y = self._pushed(r, tP, v, tv)
            ys.append(y)
            sums.v.baddbmm_(r.kept(tP).mT, cr)
            D = self._less(r, cr, v, torch.bmm(r.kept(r.P), v) if Y is None else Y[:, r.at])
            if tv is None:
                G = D * tP
                G.addcmul_(r.P, (cr * y).sum(-1, keepdim=True), value=-1)
            else:
                G = self._less(r, cr, tv, y).mul_(r.P).addcmul_(D, tP)
            sums.add(r.at, G, D.mul_(r.P), q, k, tq, tk)
            if masks is not None:
                masks.append(G)
        found = self._gathered(sums.q.mul_(self.scale), sums.k, sums.v)
        y = ys[0] if len(ys) == 1 else torch.cat(ys, 1)
        found = found if mask is None else [*found, self._for_mask(masks)]
        return y.view(*self.batch, *y.shape[1:]), found

    def _less(self, r: Rows, c: Tensor, v: Tensor, y: Tensor) -> Tensor:
        """c vᵀ − ⟨c, y⟩, with one number ⟨c, y⟩ per query."""
        return r.kept(torch.bmm(c, v.mT)).sub_((c * y).sum(-1, keepdim=True))

    def pull(self, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor | None]:
        """Fᵀ, computed explicitly when the backward pass of the fused kernel is not available."""
        mask, c = rest if len(rest) == 2 else (None, *rest)
        q, k, v, c = self._flat(q, k, v, c)
        q = q * self.scale
        sums = Sums(q, k, v)
        masks: list[Tensor] | None = [] if self.is_added else None
        for r in self._blocks(q, k, mask):
            cr = c[:, r.at]
            dS = r.softened(r.kept(torch.bmm(cr, v.mT)))
            sums.v.baddbmm_(r.kept(r.P).mT, cr)
            sums.add(r.at, dS, None, q, k, None, None)
            if masks is not None:
                masks.append(dS)
        gathered = self._gathered(sums.q.mul_(self.scale), sums.k, sums.v)
        return [*gathered, self._for_mask(masks)]

    def _pushed(self, r: Rows, tP: Tensor, v: Tensor, tv: Tensor | None) -> Tensor:
        y = torch.bmm(r.kept(tP), v)
        return y if tv is None else y.baddbmm_(r.kept(r.P), tv)

    def _scaled(self, q: Tensor, tq: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return q * self.scale, None if tq is None else tq * self.scale

    def _tangent(self, r: Rows, q: Tensor, k: Tensor, tq: Any, tk: Any, tm: Any) -> Tensor:
        """tP = P ⊙ (tS − ⟨P, tS⟩)."""
        total = torch.zeros_like(r.P) if tq is None else torch.bmm(tq[:, r.at], k.mT)
        if tk is not None:
            total.baddbmm_(q[:, r.at], tk.mT)
        if tm is not None:
            mine = tm[..., r.at, :] if tm.shape[-2] > 1 else tm
            total.view(*self.batch, *total.shape[1:]).add_(mine)
        return r.softened(total)

    def _blocks(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Iterator[Rows]:
        """The blocks. The queries q are already scaled."""
        count, keys = q.shape[1], k.shape[1]
        rows = max(1, BLOCK // max(1, len(q) * keys))
        # In half precision its rounding would be an error of the sum of P.
        lse = None if q.dtype in HALF else self._told("_saved_logsumexp", q)
        for begin in range(0, count, rows):
            at = slice(begin, min(begin + rows, count))
            S = torch.bmm(q[:, at], k.mT)
            if mask is not None:
                mine = mask[..., at, :] if mask.dim() > 1 and mask.shape[-2] > 1 else mask
                S = S.view(*self.batch, *S.shape[1:])
                S = (S + mine.to(S.dtype) if self.is_added else S.masked_fill(~mine, -torch.inf)).flatten(
                    0, -3
                )
            if self._is_causal:
                ahead = torch.ones(at.stop - begin, keys, dtype=torch.bool, device=q.device).triu(begin + 1)
                S = S.masked_fill(ahead, -torch.inf)
            if lse is not None:
                P = S.sub_(lse[:, at]).exp_()
            else:
                P = torch.softmax(S, -1) if mask is None else torch._safe_softmax(S, -1)
            yield Rows(at, P, None if self._kept is None else self._kept[:, at])

    def _told(self, name: str, like: Tensor) -> Tensor | None:
        """What the kernel's node has kept, with one batch axis and some numbers per query."""
        kept = getattr(self.node(), name, None)
        return None if kept is None else kept.reshape(*like.shape[:2], -1).to(like.dtype)

    def _flat(self, *values: Tensor | None) -> list[Any]:
        return [None if t is None else self._one(t) for t in values]

    def _one(self, t: Tensor) -> Tensor:
        if t.shape[:-2] == self.batch:
            return t.reshape(-1, *t.shape[-2:])
        if self._groups > 1 and t.shape[-3] != self.batch[-1]:
            t = t.repeat_interleave(self._groups, -3)
        return t.expand(*self.batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:])

    def _gathered(self, *found: Tensor) -> list[Tensor | None]:
        """The results per sample and head, in the shapes of q, k and v."""
        results: list[Tensor | None] = []
        for t, shape in zip(found, self.shapes, strict=True):
            t = t.view(*self.batch, *t.shape[1:])
            if self._groups > 1 and shape[-3] != self.batch[-1]:
                t = t.unflatten(-3, (-1, self._groups)).sum(-3)
            results.append(sum_to(t, shape))
        return results

    def _for_mask(self, blocks: list[Tensor] | None) -> Tensor | None:
        if blocks is None or self.mask_shape is None:
            return None
        whole = torch.cat(blocks, 1)
        return sum_to(whole.view(*self.batch, *whole.shape[1:]), self.mask_shape)


class Sums:
    """Sums over blocks of the gradients in queries, keys and values."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor):
        self.q, self.k, self.v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)

    def add(self, at: slice, G: Tensor, dS: Any, q: Tensor, k: Tensor, tq: Any, tk: Any) -> None:
        """G K + dS t_K for the queries, Gᵀ Q + dSᵀ t_Q for the keys."""
        mine = torch.bmm(G, k)
        self.k.baddbmm_(G.mT, q[:, at])
        if tk is not None:
            mine.baddbmm_(dS, tk)
        if tq is not None:
            self.k.baddbmm_(dS.mT, tq[:, at])
        self.q[:, at] = mine
