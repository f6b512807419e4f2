"""The paper's penalty: weight · mean_i h(‖J(x_i)‖₂), its loss l_spec."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..engines.pairing import Pairing, split_factor
from ..errors import InputError
from ..estimators.operator import divided, flat, normalized, norms
from ..estimators.operator import start as fixed_direction
from ..linearization import Linearization
from ..pytorch.tracing import refuse, tracing, while_tracing
from ..trust.checks import as_tensor, check_count
from .norm import Curve, NormPenalty, Reduction, Shape

MAX_SAMPLES = 10**9

Start = Literal["output", "random"]
STIR = 0.01  # of a fixed direction in the start, so that it is never zero, nor at right angles to the answer


class SpectralPenalty(NormPenalty):
    """The spectral norm of the Jacobian at each sample.

    By the envelope theorem dσ = uᵀ dJ v at the top singular pair, so u and v are found without a graph and
    held fixed: v = Jᵀu/‖Jᵀu‖, and σ = ‖J v‖. Nothing is back-propagated through the iteration, and nothing is
    differentiated twice (see `engines/pairing.py`).

    With `index`, u is what J v was when these samples last came by. Power iteration so goes on from epoch to
    epoch while the network settles, and the estimate sharpens. Without `index`, u is the row of scores that
    the network gives, less its mean: the direction in which it tells this sample from others. (Where the
    output is no row of scores, u is random.) One penalty serves one network, since the vectors belong to it.
    Since u and v are held fixed, the gradient cannot be differentiated again.

    start
        "random" begins at a random v₀ instead, with u = J v₀, as the paper does.
    h
        "identity" is the paper's σ; "square" is σ²; "hinge" is max(0, σ − threshold); or a function of σ,
        such as `lambda s: (s - 1) ** 2`: a vector in, one number for each entry out.
    reduction
        "mean", "sum" or "max" over the batch, or "none": a value for each sample.
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
        h: Shape | Curve = "identity",
        threshold: float = 1.0,
        reduction: Reduction = "mean",
        samples: int | None = None,
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(
            weight,
            h=h,
            threshold=threshold,
            reduction=reduction,
            every=every,
            budget=budget,
            fraction=fraction,
            seed=seed,
        )
        check_count("iterations", iterations)
        if start not in get_args(Start):
            raise InputError(f"start={start!r}: choose one of {', '.join(get_args(Start))}.")
        self.iterations, self.start = iterations, start
        if samples is not None:
            check_count("samples", samples)
        self.samples = samples
        self.register_buffer("u", torch.empty(0, 0, device="cpu"))

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        """The penalty; with `index`, J v is stored for the next time."""
        rows = None if index is None else self._rows(J, index)
        pairing = Pairing() if torch.is_grad_enabled() and self.reduction != "none" else None
        with torch.no_grad():
            u, is_guess = (self._first(J), self.start == "output") if rows is None else self._stored(J, rows)
            for _ in range(self.iterations - 1):
                u = normalized(J.jvp(normalized(J.vjp(u))))
            scale, rest = split_factor(self.factor(len(u)), J)
            if is_guess or not self.is_plain:
                v = normalized(J.vjp(u))
                w = J.jvp(v, pairing)
                sigma = size = norms(w)
                value, slopes = self.shaped(sigma)
                if pairing is not None:
                    J.vjp(divided(w, size, scale * slopes), pairing)
            else:  # u is about what J v is now, and may stand for it in the gradient; a first guess may not
                c = J.vjp(u, pairing)
                w = J.jvp(divided(c, norms(c), scale), pairing)
                size = norms(w)
                value, _ = self.shaped(size / scale)
            if rows is not None:
                self._store(rows, divided(w, size))
        if torch.is_grad_enabled() and self.reduction == "none":
            return self.for_each(J, sigma, [(divided(w, size), v)])
        return value if pairing is None else pairing.handed_over(value, rest)

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
        """And whether it is a guess for some. (A compiled step cannot ask: it takes it that none is.)"""
        u = self.u[rows]
        seen = u.any(1, keepdim=True)
        is_guess = not tracing() and bool(J.agreed(not bool(seen.all())))
        if tracing() or is_guess:
            u = torch.where(seen, u, flat(self._first(J)))
        return u.view(J.output_shape), is_guess

    @torch.no_grad()
    def _store(self, rows: Tensor, directions: Tensor) -> None:
        """Keep the directions. A sample whose J v is zero, or has overflowed, begins again with a guess: from
        a u with Jᵀu = 0 no later step leads anywhere.
        """
        new = flat(directions).nan_to_num_(0.0, 0.0, 0.0)
        if new.shape[1:] == self.u.shape[1:]:  # else another network has come in between
            self.u.index_copy_(0, rows, new)

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
        return f"{super().extra_repr()}, iterations={self.iterations}"


@while_tracing
def _make_room(
    penalty: SpectralPenalty, samples: int, n_out: int, dtype: torch.dtype, device: torch.device
) -> None:
    u = penalty.u
    samples = max(samples, penalty.samples or 0)
    if len(u) >= samples and u.shape[1:] == (n_out,) and u.dtype == dtype and u.device == device:
        return
    table = u if u.shape[1:] == (n_out,) else u.new_empty(0, n_out)
    table = table.to(dtype=dtype, device=device)
    missing = samples - len(table)
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
