"""The steps of LSTM, GRU and RNN layers at each time, and their derivatives.

With the weights A of the input and B of the state h, a cell gets p = A x + a and r = B h + b. At the recorded
point everything is linear, and the coefficients are found for all times at once: h gets K p + R r, and
a part of the previous state. The loop over time needs only products with B.

Gates are results as well. A cotangent that arrives at a gate belongs to the input of the gate.
All tensors have the axes (time, batch, numbers), or (batch, numbers) at one time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Vector = Tensor | None  # a tangent or cotangent; None where nothing arrives
# Cotangents of p, r and the states, and of h (and c) at each time.
Pulled = tuple[Tensor, Tensor, list[Tensor], list[Tensor]]


class Lstm:
    """c = f c + i g and h = o tanh c, with the gates i, f, g, o of p + r."""

    @staticmethod
    def run(p: Tensor, B: Tensor, b: Vector, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        gates, size = p if b is None else p.add_(b), h.shape[-1]
        hs, cs = [], []
        for at in gates:
            at.addmm_(h, B.t())
            at[:, : 2 * size].sigmoid_()
            i, f, g, o = at.chunk(4, 1)
            c = torch.addcmul(f * c, i, g.tanh_())
            h = o.sigmoid_() * c.tanh()
            hs.append(h)
            cs.append(c)
        return torch.stack(hs), torch.stack(cs), gates

    def __init__(self, B: Tensor, h0: Tensor, c0: Tensor, h: Tensor, c: Tensor, gates: Tensor):
        self.B, self.before, self.y = B, before(c0, c), c.tanh()
        self.gates = i, f, g, o = gates.chunk(4, -1)
        self.slopes = (_sigmoid(1, i), _sigmoid(1, f), _tanh(1, g), _sigmoid(1, o))
        factors = g, self.before, i, self.y
        self.K = torch.cat([s * v for s, v in zip(self.slopes, factors, strict=True)], -1)
        self.out = _tanh(o, self.y)  # of c in h

    def push(self, tp: Tensor, th: Vector, tc: Vector) -> list[Tensor]:
        th, tc = (self.out.new_zeros(self.out.shape[1:]) if t is None else t for t in (th, tc))
        found: list[tuple[Tensor, ...]] = []
        for z, K, f, out in zip(tp, self.K, self.gates[1], self.out, strict=True):
            z = torch.addmm(z, th, self.B.t())
            ti, tf, tg, to = (K * z).chunk(4, 1)
            tc = torch.addcmul(ti + tf + tg, f, tc)
            th = torch.addcmul(to, out, tc)
            found.append((th, tc, z))
        return [torch.stack(ts) for ts in zip(*found, strict=True)]

    def pull(self, dh: Vector, dc: Vector, dz: Vector) -> Pulled:
        lh = lc = self.out.new_zeros(self.out.shape[1:])
        found: list[tuple[Tensor, ...]] = []
        for t in reversed(range(len(self.K))):
            lh = plus(lh, dh, t)
            lc = torch.addcmul(plus(lc, dc, t), self.out[t], lh)
            z = plus(self.K[t] * torch.cat([lc, lc, lc, lh], 1), dz, t)
            found.append((lh, lc, z))
            lh, lc = z @ self.B, self.gates[1][t] * lc
        at_h, at_c, back = (torch.stack(vs[::-1]) for vs in zip(*found, strict=True))
        return back, back, [lh, lc], [at_h, at_c]

    def terms(self, back: Pulled, pushed: list[Tensor], ts: Sequence[Vector]) -> list[Vector]:
        """In h0, c0, h, c, gates."""
        (i, f, g, o), (lh, lc), (_, tc, tz) = self.gates, back[3], pushed
        slopes, y = self.slopes, self.y
        ti, tf, tg, to = (s * t for s, t in zip(slopes, tz.chunk(4, -1), strict=True))
        in_gates = [
            lc * ((1 - 2 * i) * g * ti + slopes[0] * tg),
            lc * ((1 - 2 * f) * self.before * tf + slopes[1] * before(ts[1], tc)),
            lc * (slopes[2] * ti - 2 * g * i * tg),
            lh * ((1 - 2 * o) * y * to + _tanh(slopes[3], y) * tc),
        ]
        in_before = lc * tf
        in_c = _tanh(lh, y) * (to - 2 * o * y * tc)
        in_c[:-1] += in_before[1:]
        return [None, in_before[0], None, in_c, torch.cat(in_gates, -1)]


class OneState:
    """h gets K p + R r + keep·h."""

    def __init__(self, B: Tensor, K: Tensor, R: Tensor, keep: Vector = None):
        self.B, self.K, self.R, self.keep, self.count = B, K, R, keep, len(B) // B.shape[1]

    def _sum(self, v: Tensor) -> Tensor:
        first, *others = v.chunk(self.count, -1)
        return sum(others, first)

    def _each(self, v: Tensor) -> Tensor:
        return v if self.count == 1 else torch.cat([v] * self.count, -1)

    def pushed(self, tp: Tensor, th: Vector) -> tuple[Tensor, Tensor]:
        """The tangents of h and r."""
        hs, rs, come = [], [], self._sum(self.K * tp)
        th = torch.zeros_like(come[0]) if th is None else th
        for t, R in enumerate(self.R):
            r = th @ self.B.t()
            kept = come[t] if self.keep is None else torch.addcmul(come[t], self.keep[t], th)
            th = kept + self._sum(R * r)
            hs.append(th)
            rs.append(r)
        return torch.stack(hs), torch.stack(rs)

    def pulled(self, dh: Vector, dp: Vector = None, dr: Vector = None) -> Pulled:
        """The cotangents that arrive at p and r besides are dp and dr."""
        hs, rs = [], []
        lh = self.R.new_zeros(self.R.shape[1], self.B.shape[1])
        for t in reversed(range(len(self.R))):
            lh = plus(lh, dh, t)
            r = plus(self.R[t] * self._each(lh), dr, t)
            hs.append(lh)
            rs.append(r)
            back = r @ self.B
            lh = back if self.keep is None else torch.addcmul(back, self.keep[t], lh)
        at_h, at_r = torch.stack(hs[::-1]), torch.stack(rs[::-1])
        at_p = self.K * self._each(at_h)
        return at_p if dp is None else at_p + dp, at_r, [lh], [at_h]


class Gru(OneState):
    """h = (1 − z) n + z h with the gates r, z and n. Into n goes r·q with the state's part q."""

    @staticmethod
    def run(p: Tensor, B: Tensor, b: Vector, h: Tensor) -> tuple[Tensor, ...]:
        size, hs, qs = h.shape[-1], [], []
        for at in p:
            back = torch.nn.functional.linear(h, B, b)
            q = back[:, 2 * size :]
            at[:, : 2 * size].add_(back[:, : 2 * size]).sigmoid_()
            r, z, n = at.chunk(3, 1)
            h = torch.lerp(n.addcmul_(r, q).tanh_(), h, z)
            hs.append(h)
            qs.append(q)
        return torch.stack(hs), p, torch.stack(qs)

    def __init__(self, B: Tensor, h0: Tensor, h: Tensor, gates: Tensor, q: Tensor):
        r, z, n = gates.chunk(3, -1)
        self.gates, self.q, self.before = (r, z, n), q, before(h0, h)
        in_n = _tanh(1 - z, n)
        in_z, self.in_r = _sigmoid(self.before - n, z), _sigmoid(q, r)  # of r in what goes into n
        in_r = in_n * self.in_r
        super().__init__(B, torch.cat([in_r, in_z, in_n], -1), torch.cat([in_r, in_z, in_n * r], -1), z)

    def push(self, tp: Tensor, th: Vector) -> list[Tensor]:
        th, back = self.pushed(tp, th)
        size = th.shape[-1]
        both, tq = (tp + back)[..., : 2 * size], back[..., 2 * size :]
        tn = tp[..., 2 * size :] + self.in_r * both[..., :size] + self.gates[0] * tq
        return [th, torch.cat([both, tn], -1), tq]

    def pull(self, dh: Vector, dgates: Vector, dq: Vector) -> Pulled:
        if dgates is None and dq is None:
            return self.pulled(dh)
        zeros = torch.zeros_like(self.q)
        dr, dz, dn = (zeros, zeros, zeros) if dgates is None else dgates.chunk(3, -1)
        dr, through = dr + self.in_r * dn, self.gates[0] * dn
        return self.pulled(
            dh,
            torch.cat([dr, dz, dn], -1),
            torch.cat([dr, dz, through if dq is None else through + dq], -1),
        )

    def terms(self, back: Pulled, pushed: list[Tensor], ts: Sequence[Vector]) -> list[Vector]:
        """In h0, h, gates, q."""
        (r, z, n), (lh,), (th, tgates, tq) = self.gates, back[3], pushed
        tR, tZ, tN = tgates.chunk(3, -1)
        tr, tz, tn = _sigmoid(tR, r), _sigmoid(tZ, z), _tanh(tN, n)
        at_n = _tanh(lh * (1 - z), n)
        in_r = at_n * ((1 - 2 * r) * self.q * tr + _sigmoid(tq, r))
        in_z = lh * (_sigmoid(before(ts[0], th) - tn, z) + (1 - 2 * z) * (self.before - n) * tz)
        in_n = -2 * n * at_n * tN - _tanh(lh * tz, n)
        in_before = lh * tz
        in_h = torch.cat([in_before[1:], torch.zeros_like(in_before[:1])])
        return [in_before[0], in_h, torch.cat([in_r, in_z, in_n], -1), at_n * tr]


class Rnn(OneState):
    """h = tanh(p + r)."""

    activation = staticmethod(torch.tanh_)

    @classmethod
    def run(cls, p: Tensor, B: Tensor, b: Vector, h: Tensor) -> tuple[Tensor, ...]:
        for at in p if b is None else p.add_(b):
            h = cls.activation(at.addmm_(h, B.t()))
        return (p,)

    def __init__(self, B: Tensor, h0: Tensor, h: Tensor):
        self.h, slope = h, self.slope(h)
        super().__init__(B, slope, slope)

    def slope(self, h: Tensor) -> Tensor:
        return 1 - h * h

    def push(self, tp: Tensor, th: Vector) -> list[Tensor]:
        th, back = self.pushed(tp, th)
        return [th, tp + back]

    def pull(self, dh: Vector) -> Pulled:
        return self.pulled(dh)

    def terms(self, back: Pulled, pushed: list[Tensor], ts: Sequence[Vector]) -> list[Vector]:
        """In h0, h."""
        return [None, -2 * self.h * back[3][0] * pushed[1]]


class RnnRelu(Rnn):
    """h = max(p + r, 0)."""

    activation = staticmethod(torch.relu_)

    def slope(self, h: Tensor) -> Tensor:
        return (h > 0).to(h.dtype)

    def terms(self, back: Pulled, pushed: list[Tensor], ts: Sequence[Vector]) -> list[Vector]:
        return [None, None]


def before(first: Vector, at: Tensor) -> Tensor:
    """The state before each time."""
    return torch.cat([torch.zeros_like(at[:1]) if first is None else first[None], at[:-1]])


def plus(v: Tensor, more: Vector, t: int) -> Tensor:
    return v if more is None else v + more[t]


def _sigmoid(c: Any, y: Tensor) -> Tensor:
    """c y (1 − y)"""
    return aten.sigmoid_backward(c if isinstance(c, Tensor) else torch.ones_like(y), y)


def _tanh(c: Any, y: Tensor) -> Tensor:
    """c (1 − y²)"""
    return aten.tanh_backward(c if isinstance(c, Tensor) else torch.ones_like(y), y)
