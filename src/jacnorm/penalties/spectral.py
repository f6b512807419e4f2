"""The paper's penalty: weight · mean_i h(‖J(x_i)‖₂), its loss l_spec."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..checks import as_tensor, check_count, check_positive
from ..engines.outer import differentiable_once, with_outer_products
from ..engines.tape import Slot, Tape
from ..errors import InputError
from ..estimators.operator import divided, flat, normalized, norms
from ..estimators.operator import start as fixed_direction
from ..linearization import Linearization
from ..tracing import refuse, tracing, while_tracing
from .base import Penalty

MAX_SAMPLES = 10**9

Shape = Literal["identity", "square", "hinge"]
Start = Literal["output", "random"]
STIR = 0.01  # of a fixed direction in the start, so that it is never zero, nor at right angles to the answer


class SpectralPenalty(Penalty):
    """The spectral norm of the Jacobian at each sample.

    By the envelope theorem dσ = uᵀ dJ v at the top singular pair, so u and v are found without a graph and
    held fixed: v = Jᵀu/‖Jᵀu‖, and σ = ‖J v‖. Nothing is back-propagated through the iteration.

    With `index`, u is what J v was when these samples last came by. Power iteration so goes on from epoch to
    epoch while the network settles, and the estimate sharpens. Without `index`, u is the row of scores that
    the network gives, less its mean: the direction in which it tells this sample from others. (Where the
    output is no row of scores, u is random.) One penalty serves one network, since the vectors belong to it.
    Since u and v are held fixed, the gradient cannot be differentiated again.

    start
        "random" begins at a random v instead, with u = J v and σ = ‖Jᵀu‖, as the paper does.
    h
        "identity" is the paper's σ; "square" is σ²; "hinge" is max(0, σ − threshold).
    samples
        How many the data set has, for `index` in a compiled step. (Eager ones make room as samples come by.)
    """

    u: Tensor  # (samples, n_out), unit rows; zero for samples not seen yet

    def __init__(
        self,
        weight: float = 0.01,
        iterations: int = 1,
        *,
        start: Start = "output",
        h: Shape = "identity",
        threshold: float = 1.0,
        samples: int | None = None,
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(weight, seed, every=every, budget=budget, fraction=fraction)
        check_count("iterations", iterations)
        check_positive("threshold", threshold)
        if h not in get_args(Shape):
            raise InputError(f"h={h!r}: choose one of {', '.join(get_args(Shape))}.")
        if start not in get_args(Start):
            raise InputError(f"start={start!r}: choose one of {', '.join(get_args(Start))}.")
        self.iterations, self.start, self.h, self.threshold = iterations, start, h, threshold
        if samples is not None:
            check_count("samples", samples)
        self.samples = samples
        self.register_buffer("u", torch.empty(0, 0, device="cpu"))
        self._awaited = set[int]()  # rows whose J v no backward() has brought yet (see `_backward_form`)

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        """The penalty; with `index`, J v is stored for the next time."""
        rows = None if index is None else self._rows(J, index)
        with torch.no_grad():
            u, all_seen = (self._first(J), False) if rows is None else self._stored(J, rows)
            for _ in range(self.iterations - 1):
                u = normalized(J.jvp(normalized(J.vjp(u))))
        # A stored u is about what J v is now, and may stand for it in the gradient; a first guess may not.
        if rows is not None and all_seen and J.tape is not None and self._is_mean():
            return self.weight * self._outer_form(J, J.tape, u, rows)
        if J.engine == "autograd" or (rows is None and self.start == "random"):
            sigma = self._backward_form(J, u, rows)
        else:
            sigma = self._forward_form(J, u, rows)
        return self.weight * differentiable_once(self._shaped(sigma).mean())

    def _is_mean(self) -> bool:
        """Outer products have no factor for each sample, as the gradient of another h needs it."""
        return self.h == "identity" and torch.is_grad_enabled()

    def _shaped(self, sigma: Tensor) -> Tensor:
        if self.h == "hinge":
            return torch.relu(sigma - self.threshold)
        return sigma.square() if self.h == "square" else sigma

    def _first(self, J: Linearization) -> Tensor:
        if self.start == "random":
            return normalized(J.jvp(normalized(self.random(J.input_shape, J))))
        if J.output.shape != J.output_shape or J.output.dim() != 2:
            return normalized(self.random(J.output_shape, J))
        scores = J.output.detach().to(J.dtype)
        if scores.shape[1] > 1:
            scores = scores - scores.mean(1, keepdim=True)
        return normalized(normalized(scores) + STIR * fixed_direction(J.output_shape, J))

    def _stored(self, J: Linearization, rows: Tensor) -> tuple[Tensor, bool]:
        """And whether all have come by before. (A compiled step cannot ask: it takes that for granted.)"""
        u = self.u[rows]
        seen = u.any(1, keepdim=True)
        all_seen = tracing() or bool(seen.all())
        if tracing() or not all_seen:
            u = torch.where(seen, u, flat(self._first(J)))
        return u.view(J.output_shape), all_seen

    def _forward_form(self, J: Linearization, u: Tensor, rows: Tensor | None) -> Tensor:
        """σ = ‖J v‖ with v = Jᵀu/‖Jᵀu‖."""
        with torch.no_grad():
            v = normalized(J.vjp(u))
        w = J.jvp(v)
        sigma = norms(w)
        if rows is not None:
            self._store(rows, w, sigma, also_zero=True)
        return sigma

    def _outer_form(self, J: Linearization, tape: Tape, u: Tensor, rows: Tensor) -> Tensor:
        """The mean of the same σ, with the gradient of mean uᵀJ v."""
        J.check_unchanged()
        cotangents: dict[Slot, Tensor] = {}
        weighted: dict[Slot, Tensor] = {}
        with torch.no_grad():
            pulled = tape.vjp(u.to(J.output_dtype), cotangents)
            v = u.new_zeros(J.input_shape) if pulled is None else normalized(pulled.to(J.dtype))
        w = tape.jvp(v.to(J.input_dtype), weighted).to(J.dtype)
        sigma = norms(w)
        self._store(rows, w, sigma, also_zero=True)
        return with_outer_products(sigma.mean(), cotangents, weighted, 1 / len(u))

    def _backward_form(self, J: Linearization, u: Tensor, rows: Tensor | None) -> Tensor:
        """σ = ‖Jᵀu‖. Back-propagating it brings J v to u, for free: where J v is dear, that is the next u.

        It brings nothing where h is flat, nor where gradients are taken of the parameters alone
        (`torch.autograd.grad`), as was done the last time if it has not come. Then J v is computed.
        """
        if rows is None:
            return torch.linalg.vector_norm(flat(J.vjp(u)), dim=1)
        will_come = self.h != "hinge" and self._awaited.isdisjoint(rows.tolist())
        if torch.is_grad_enabled():
            self._await(u, rows)
        pulled = J.vjp(u)
        sigma = torch.linalg.vector_norm(flat(pulled), dim=1)
        with torch.no_grad():
            if will_come:  # as `_store` does with J v = 0, which does not come by here
                self.u[rows] = torch.where((sigma == 0)[:, None], 0, self.u[rows])
            else:
                w = J.jvp(normalized(pulled))
                self._store(rows, w, norms(w), also_zero=True)
        return sigma

    def _await(self, u: Tensor, rows: Tensor) -> None:
        names = rows.tolist()

        def arrive(gradient: Tensor) -> None:
            self._awaited.difference_update(names)
            self._store(rows, gradient, norms(gradient))

        self._store(rows, u, norms(u))  # as far as it has come, should nobody call backward()
        self._awaited.update(names)
        u.requires_grad_().register_hook(arrive)

    @torch.no_grad()
    def _store(self, rows: Tensor, direction: Tensor, size: Tensor, *, also_zero: bool = False) -> None:
        """Keep the direction, unless it has overflowed under too large a loss scale.

        J v = 0 is kept `also`: from a u with Jᵀu = 0 no later step leads anywhere, so that the sample has to
        begin anew. A gradient of zero says nothing: h may have none there.
        """
        new = flat(divided(direction, size))
        if new.shape[1:] == self.u.shape[1:]:  # else another network has come in between
            known = torch.isfinite(size) if also_zero else (size > 0) & torch.isfinite(size)
            self.u[rows] = torch.where(known[:, None], new, self.u[rows])

    def _rows(self, J: Linearization, index: Tensor) -> Tensor:
        """The index, and room for its vectors."""
        if tracing() and self.samples is None:
            refuse(
                "A compiled step cannot make room for vectors as samples come by: say how many there are, "
                "SpectralPenalty(samples=len(dataset))."
            )
        index, last = _checked(index, J.output_shape[0])
        _make_room(self, last + 1, J.output_shape[1:].numel(), J.dtype, J.device)
        return index.to(J.device)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        if prefix + "u" in state_dict:  # as many rows as were saved
            self.u = torch.empty_like(state_dict[prefix + "u"], device=self.u.device)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        shape = f", h='hinge', threshold={self.threshold}" if self.h == "hinge" else f", h={self.h!r}"
        return f"{super().extra_repr()}, iterations={self.iterations}{shape}"


@while_tracing
def _make_room(
    penalty: SpectralPenalty, samples: int, n_out: int, dtype: torch.dtype, device: torch.device
) -> None:
    u = penalty.u
    table = u if u.shape[1:] == (n_out,) else u.new_empty(0, n_out)
    table = table.to(dtype=dtype, device=device)
    missing = max(samples, penalty.samples or 0) - len(table)
    if missing > 0:  # grow in large steps, since a first epoch asks for row after row
        table = torch.cat([table, table.new_zeros(max(missing, len(table) // 2), n_out)])
    penalty.u = table.detach()


def _checked(index: object, batch: int) -> tuple[Tensor, int]:
    """The index as whole numbers, and the largest of them (which a compiled step does not know)."""
    index = as_tensor(index)
    if index.shape != (batch,) or index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(
            f"index has shape {tuple(index.shape)} and dtype {index.dtype}; it must hold the "
            f"position in the data set of each of the {batch} samples, as whole numbers."
        )
    index = index.long()
    if tracing():
        return index, -1
    first, last = (int(n) for n in index.aminmax())
    if first < 0 or last >= MAX_SAMPLES:
        raise InputError(
            f"index goes from {first} to {last}; positions in a data set start at 0, "
            "and there is a stored vector for each up to the largest."
        )
    return index, last
