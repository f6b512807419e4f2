"""The paper's penalty: weight · mean_i h(‖J(x_i)‖₂), its loss l_spec."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from ..engines.pairing import Pairing, split_factor
from ..errors import InputError
from ..estimators import spectral_norm
from ..estimators.operator import all_done, column, divided, flat, normalized, norms, size
from ..estimators.operator import start as fixed_direction
from ..estimators.ritz import Ritz
from ..linearization import Linearization
from ..pytorch.tracing import inside_torch_func, refuse, tracing
from ..trust.checks import check_count, check_positive
from .norm import Curve, NormPenalty, Reduction, Shape
from .recent import RecentVectors
from .stored import StoredVectors

Start = Literal["recent", "output", "random"]
STIR = 0.01  # of a fixed direction in the start, so that it is never zero, nor at right angles to the answer
MOST_ROUNDS = 10  # of iterations="auto"
LOOKS = (100, 1000, 10_000)  # payments without `index` that are looked at more closely
ALIGNED = 0.8  # mean (uᵀu₁)(vᵀv₁), above which the gradient's cosine was 0.9 or more (`jacnorm bench starts`)
CLOSE = 0.05  # to σ: then other directions are about as sensitive, and as good to penalize


class SpectralPenalty(NormPenalty, StoredVectors):
    """The spectral norm of the Jacobian at each sample.

    By the envelope theorem dσ = uᵀ dJ v at the top singular pair, so u and v are found without a graph and
    held fixed: v = Jᵀu/‖Jᵀu‖, and σ = ‖J v‖. Nothing is back-propagated through the iteration, and nothing is
    differentiated twice (see `engines/pairing.py`).

    With `index`, u is what J v was when these samples last came by. Power iteration so goes on from epoch to
    epoch while the network settles, and the estimate sharpens. Without `index`, u is what J v was for recent
    samples with a similar output. One penalty serves one network, since the vectors belong to it.
    Since u and v are held fixed, the gradient cannot be differentiated again.

    iterations
        Rounds of the iteration, each a product with Jᵀ and one with J. From the second on v is the best
        vector of the Krylov space. "auto" takes as many as the batch needs until ‖J v − σu‖ ≤ tol · σ on
        average, at most 10.
    start
        What u is where nothing is stored: "recent", as above (and "output" for the first batch); "output",
        the row of scores that the network gives, less its mean (random where the output is no row of scores);
        "random", u = J v₀ for a random v₀, as the paper does.
    h
        "identity" is the paper's σ; "square" is σ²; "hinge" is max(0, σ − threshold); or a function of σ,
        such as `lambda s: (s - 1) ** 2`: a vector in, one number for each entry out.
    reduction
        "mean", "sum" or "max" over the batch, or "none": a value for each sample.
    samples
        How many the data set has, for `index` in a compiled step. (Eager ones make room as samples come by.)
    stored_as
        torch.float16 or torch.bfloat16, to store the vectors of `index` in half the memory.
    stored_in
        A file to keep them in, memory-mapped. It needs `samples`, and is not part of `state_dict`.
    """

    def __init__(
        self,
        weight: float = 0.01,
        iterations: int | Literal["auto"] = 1,
        *,
        tol: float = 0.1,
        start: Start = "recent",
        h: Shape | Curve = "identity",
        threshold: float = 1.0,
        reduction: Reduction = "mean",
        samples: int | None = None,
        stored_as: torch.dtype | None = None,
        stored_in: str | Path | None = None,
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
        seed: int = 0,
        target: float | None = None,
        target_quantile: float | None = None,
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
            target=target,
            target_quantile=target_quantile,
        )
        if iterations != "auto":
            check_count("iterations", iterations)
        check_positive("tol", tol)
        if start not in get_args(Start):
            raise InputError(f"start={start!r}: choose one of {', '.join(get_args(Start))}.")
        self.iterations, self.tol, self.start = iterations, tol, start
        self._payments, self._has_warned = 0, False
        self.keep_vectors(samples, stored_as, stored_in)
        self.recent = RecentVectors()

    is_estimated = True

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        """The penalty; the direction of J v is kept for the next time."""
        rows = None if index is None else self.rows(J, index)
        value, u, v = self._found(J, rows)
        if rows is not None:
            self.store(rows, u)
        elif self._has_memory:
            self.recent.remember(J, u)
        if rows is None and torch.is_grad_enabled() and not (tracing() or inside_torch_func()):
            self._look_further(J, u, v)
        return value

    def estimated(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        return self._found(J, None if index is None else self.rows(J, index))[0]

    def exactly(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        e = spectral_norm(J, tol=1e-3, max_iterations=100)
        return self.carried(J, e.sigma, [(e.u, e.v)])

    def _found(self, J: Linearization, rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The penalty, J v/‖J v‖, and v (of any length)."""
        is_live = torch.is_grad_enabled() and self.reduction != "none"
        pairing = Pairing() if is_live else None
        with torch.no_grad():
            u, is_guess = self._begin(J, rows)
            scale, rest = split_factor(self.factor(len(u)), J)
            if is_guess or not self.is_plain or self.iterations == "auto":
                v, w, pairing = self._refined(J, u, is_live)
                sigma = length = norms(w)
                value, slopes = self.shaped(sigma)
                if pairing is not None:
                    J.vjp(divided(w, length, scale * slopes), pairing)
            else:  # u is about what J v is now, and may stand for it in the gradient; a first guess may not
                c = J.vjp(self._advanced(J, u), pairing)
                v = divided(c, norms(c), scale)
                w = J.jvp(v, pairing)
                length = norms(w)
                value, _ = self.shaped(length / scale)
            directions = divided(w, length)
        if torch.is_grad_enabled() and self.reduction == "none":
            value = self.for_each(J, sigma, [(directions, v)])
        return value if pairing is None else pairing.handed_over(value, rest), directions, v

    def _look_further(self, J: Linearization, u: Tensor, v: Tensor) -> None:
        """Whether ten more rounds lead elsewhere, in a few steps of a training."""
        self._payments += 1
        if self._payments not in LOOKS or not J.agreed(not self._has_warned):
            return
        self.pace.is_unusual = True  # this step takes longer
        aligned, low = alignment(J, u, v)
        if is_rough(aligned, low) and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"The spectral penalty finds σ {low:.0%} too low, in directions that are not yet the most "
                "sensitive ones: its gradient is roughly right only. Pass index= (the positions of the "
                "samples in the data set), or take iterations=2 or more, or iterations='auto'. "
                "print(penalty.report(J)) measures how good it is.",
                stacklevel=4,
            )

    def _refined(self, J: Linearization, u: Tensor, is_live: bool) -> tuple[Tensor, Tensor, Pairing | None]:
        """v and J v after all rounds, and the pairing that the last sweep has left its vectors in."""
        space, is_auto = Ritz(J, u), self.iterations == "auto"
        for left in reversed(range(self._rounds(J))):
            v = space.right()
            pairing = Pairing() if is_live and (is_auto or left == 0) else None
            w = J.jvp(v, pairing)
            if left == 0 or (is_auto and not J.agreed(not space.gap(w) <= self.tol)):
                break
            space.grow(w)
        return v, w, pairing

    def _advanced(self, J: Linearization, u: Tensor) -> Tensor:
        """u after all rounds but the last."""
        space = Ritz(J, u)
        for _ in range(self._rounds(J) - 1):
            w = J.jvp(space.right())
            space.grow(w)
            u = normalized(w)
        return u

    def _rounds(self, J: Linearization) -> int:
        """No more than the space has dimensions."""
        if self.iterations == "auto":
            if tracing():
                refuse("iterations='auto' looks at values, which a compiled step cannot: give a number.")
            return MOST_ROUNDS
        return min(self.iterations, 1 + min(size(J.input_shape), size(J.output_shape)))

    def _begin(self, J: Linearization, rows: Tensor | None) -> tuple[Tensor, bool]:
        """u, and whether it is a guess, for some at least. (A compiled step cannot ask, and takes stored ones
        for none.)"""
        if rows is None and not self._has_memory:
            return self._first(J), self.start != "random"
        u, known = self.recent.guess(J) if rows is None else self.recalled(J, rows)
        is_complete = not tracing() and all_done(J, known)
        if not is_complete:
            u = torch.where(column(known, u), u, self._first(J))
        return u, rows is None or not (tracing() or is_complete)

    @property
    def _has_memory(self) -> bool:
        return self.start == "recent" and not inside_torch_func()

    def _first(self, J: Linearization) -> Tensor:
        if self.start == "random":
            return normalized(J.jvp(normalized(self.random(J.input_shape, J))))
        if J.output.shape != J.output_shape or J.output.dim() != 2:
            return normalized(self.random(J.output_shape, J))
        scores = J.output.detach().to(J.dtype)
        if scores.shape[1] > 1:
            scores = scores - scores.mean(1, keepdim=True)
        return normalized(normalized(scores) + STIR * fixed_direction(J.output_shape, J))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, iterations={self.iterations}"


def is_rough(aligned: float, low: float) -> bool:
    """Whether directions are so far off that the gradient is."""
    return aligned < ALIGNED and low > CLOSE


@torch.no_grad()
def alignment(J: Linearization, u: Tensor, v: Tensor) -> tuple[float, float]:
    """Of u and v with what ten rounds more make of them, weighted by σ; and by how much σ is too low."""
    further = u
    for _ in range(10):
        right = normalized(J.vjp(further))
        w = J.jvp(right)
        further = normalized(w)
    sigma, v = norms(w), normalized(v)
    both = (flat(u) * flat(further)).sum(1) * (flat(v) * flat(right)).sum(1)
    total = float(sigma.sum())
    if total == 0:
        return 1.0, 0.0
    return float((sigma * both).sum()) / total, 1 - float(norms(J.jvp(v)).sum()) / total
