"""The paper's penalty: weight · mean_i h(‖J(x_i)‖₂), its loss l_spec."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from ..engines.pairing import Pairing, split_factor
from ..errors import warn
from ..estimators import spectral_norm
from ..estimators.operator import all_done, column, divided, flat, normalized, norms, size
from ..estimators.operator import start as fixed_direction
from ..estimators.ritz import Ritz
from ..linearization import Linearization
from ..pytorch.tracing import inside_torch_func, refuse, tracing
from ..trust.checks import check_positive
from .curve import Curve, Shape
from .norm import NormPenalty, Reduction
from .recent import RecentVectors
from .settings import Setting, count_or, one_of
from .stored import StoredVectors, check_index

Start = Literal["recent", "output", "random"]
STIR = 0.01  # the part of a fixed direction in the start: it is then never zero or orthogonal to the answer
MOST_ROUNDS = 10  # the most rounds of iterations="auto"
LOOKS = (100, 1000, 10_000)  # the calls without `index` in which the estimate is checked
ALIGNED = 0.8  # mean (uᵀu₁)(vᵀv₁), above which the gradient's cosine was 0.9 or more (`jacnorm bench starts`)
CLOSE = 0.05  # within this relative distance of σ, other directions are about as good to penalize


class SpectralPenalty(NormPenalty, StoredVectors):
    """weight · mean_i h(‖J(x_i)‖₂): the spectral norm of the Jacobian at each sample.

    `penalty(J)` or `penalty(J, index=idx)` returns a scalar, or a tensor (B,) with reduction="none". `idx`
    (B,) holds the positions of the samples in the data set, as whole numbers.

    By the envelope theorem dσ = uᵀ dJ v at the top singular pair. So u and v are found without a graph and
    held fixed: v = Jᵀu/‖Jᵀu‖, and σ = ‖J v‖. Nothing is back-propagated through the iteration, and nothing is
    differentiated twice (see `engines/pairing.py`). For this reason the gradient cannot be differentiated
    again.

    With `index`, the iteration starts from the J v of the last time that each sample was used. Power
    iteration thus continues from epoch to epoch, and the estimate becomes more accurate. Without `index`, it
    starts from the J v of recent samples with a similar output. Use one penalty per network, because the
    stored vectors belong to the network.

    iterations
        The number of rounds, each with one product with Jᵀ and one with J. From the second round on, v is the
        best vector of the Krylov space. "auto" continues until ‖J v − σu‖ ≤ tol · σ on average over the
        batch, for at most 10 rounds.
    tol
        The tolerance of iterations="auto".
    start
        The first u of a sample without a stored vector. "recent" uses recent samples, as above, and "output"
        for the first batch. "output" uses the scores of the sample minus their mean (a random u if the output
        is not a row of scores). "random" uses u = J v₀ for a random v₀, as in the paper.
    h
        "identity" is σ, as in the paper; "square" is σ²; "hinge" is max(0, σ − threshold). Or a function,
        such as `lambda s: (s - 1) ** 2`, that maps σ (B,) to one number per sample, (B,).
    reduction
        "mean", "sum" or "max" over the batch, or "none" for a value per sample.
    samples
        The size of the data set. It is needed for `index` in a compiled step; eager steps make room for
        vectors as samples appear.
    stored_as
        torch.float16 or torch.bfloat16, to store the vectors of `index` in half the memory.
    stored_in
        A memory-mapped file in which the vectors are stored. It needs `samples`, and is not part of
        `state_dict`.
    every, budget, fraction, seed
        As in `Penalty`.
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
        self.iterations, self.tol, self.start = iterations, tol, start
        self._payments, self._has_warned = 0, False
        self.keep_vectors(samples, stored_as, stored_in)
        self.recent = RecentVectors()

    iterations = Setting[int | Literal["auto"]](count_or("auto"))
    tol = Setting[float](check_positive)
    start = Setting[Start](one_of(*get_args(Start)))
    is_estimated = True

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        """The penalty. The direction of J v is stored for the next call."""
        if size(J.output_shape) == 1:
            if index is not None:
                check_index(index, J.output_shape[0])
            return self._of_one_number(J)
        rows = None if index is None else self.rows(J, index, makes_room=not self.is_looking)
        value, u, v = self._found(J, rows)
        if not self.is_looking:
            self._keep(J, rows, u, v)
        return value

    def _keep(self, J: Linearization, rows: Tensor | None, u: Tensor, v: Tensor) -> None:
        if rows is not None:
            self.store(rows, u)
            return
        if self._has_memory:
            self.recent.remember(J, u)
        if not (tracing() or inside_torch_func()):
            self._look_further(J, u, v)

    def exactly(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        e = spectral_norm(J, tol=1e-3, max_iterations=100)
        return self.carried(J, e.sigma, [(e.u, e.v)])

    def _of_one_number(self, J: Linearization) -> Tensor:
        """Where the output is one number, as a critic's, u is 1 and σ = ‖Jᵀ1‖: there is nothing to search."""
        u, pairing = torch.ones(J.output_shape, dtype=J.dtype, device=J.device), Pairing()
        with torch.no_grad():
            c = J.vjp(u, pairing)
        sigma = norms(c)
        return self.carried(J, sigma, [(u, divided(c, sigma))], pairing)

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
            else:  # a stored u is close to J v and can replace it in the gradient; a first guess cannot
                c = J.vjp(self._advanced(J, u), pairing)
                v = divided(c, norms(c), scale)
                w = J.jvp(v, pairing)
                length = norms(w)
                sigma = length / scale
                self._note(sigma)
                value = self.factor(len(u)) * sigma.sum()
            directions = divided(w, length)
        if torch.is_grad_enabled() and self.reduction == "none":
            value = self.for_each(J, sigma, [(directions, v)])
        return value if pairing is None else pairing.handed_over(value, rest), directions, v

    def _look_further(self, J: Linearization, u: Tensor, v: Tensor) -> None:
        """In a few training steps, check whether ten more rounds change the directions, and warn if so."""
        self._payments += 1
        if self._payments not in LOOKS or not J.agreed(not self._has_warned):
            return
        self.pace.is_unusual = True  # this step takes longer
        aligned, low = alignment(J, u, v)
        if is_rough(aligned, low) and not self._has_warned:
            self._has_warned = True
            warn(
                f"The spectral penalty finds σ {low:.0%} too low, in directions that are not yet the most "
                "sensitive ones, so its gradient is only roughly right. Pass index= (the positions of the "
                "samples in the data set), or use iterations=2 or more, or iterations='auto'. "
                "print(penalty.report(J)) shows the error."
            )

    def _refined(self, J: Linearization, u: Tensor, is_live: bool) -> tuple[Tensor, Tensor, Pairing | None]:
        """v and J v after all rounds, and the pairing that holds the vectors of the last sweep."""
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
        """u before the last round."""
        space = Ritz(J, u)
        for _ in range(self._rounds(J) - 1):
            w = J.jvp(space.right())
            space.grow(w)
            u = normalized(w)
        return u

    def _rounds(self, J: Linearization) -> int:
        """The number of rounds, at most the dimension of the space."""
        if self.iterations == "auto":
            if tracing():
                refuse("iterations='auto' looks at values, which a compiled step cannot do: give a number.")
            return MOST_ROUNDS
        return min(self.iterations, 1 + min(size(J.input_shape), size(J.output_shape)))

    def _begin(self, J: Linearization, rows: Tensor | None) -> tuple[Tensor, bool]:
        """u, and whether it is a guess for at least one sample. (A compiled step cannot check this. It
        assumes that stored vectors are no guesses.)"""
        if rows is None and not self._has_memory:
            return self._first(J), self.start != "random"
        if rows is None and not self.is_looking:
            self.recent.make_room(J)
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
    """Whether the directions are so wrong that the gradient is wrong."""
    return aligned < ALIGNED and low > CLOSE


@torch.no_grad()
def alignment(J: Linearization, u: Tensor, v: Tensor) -> tuple[float, float]:
    """How well u and v agree with the result of ten more rounds, weighted by σ; and how much too low σ is."""
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
