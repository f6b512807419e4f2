"""Penalties on maps from a space to itself: the trace of J, and its spectral radius."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Unpack

import torch
from torch import Tensor

from ..engines.pairing import Pairing
from ..errors import InputError
from ..estimators.eigen import eigenpairs
from ..estimators.operator import basis, column, flat, size
from ..linearization import Linearization
from ..trust.checks import check_count
from .norm import Common, NormPenalty
from .report import MANY
from .settings import Setting, count_or


class TracePenalty(NormPenalty):
    """weight · mean_i h(tr J(x_i)): the divergence of the map, with its sign.

    `penalty(J)` returns a scalar. The trace is estimated as tr J = E εᵀJ ε for random signs ε (Hutchinson,
    1989). Raises `InputError` if the output of the model does not have the shape of its input.

    probes
        The number of random vectors ε, or "all" for the exact trace, from one product per output. The
        estimate is unbiased if h is "identity"; with any other h it is biased.

    Further arguments are those of `NormPenalty`.
    """

    def __init__(self, weight: float = 0.01, probes: int | Literal["all"] = 1, **common: Unpack[Common]):
        super().__init__(weight, **common)
        self.probes = probes

    probes = Setting[int | Literal["all"]](count_or("all"))
    no_target = "a trace may be negative, and a target is of a size."

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        _check_square(J, "trace")
        return self._probed(J, self.probes)

    def exactly(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        return self._probed(J, "all" if size(J.output_shape) <= MANY else MANY)

    def _probed(self, J: Linearization, probes: int | Literal["all"]) -> Tensor:
        vectors, share = self._vectors(J, probes)
        pairing = Pairing() if probes == 1 else None
        with torch.no_grad():
            parts = [share * (flat(J.vjp(e, pairing)) * flat(e)).sum(1) for e in vectors()]
        return self.carried(J, torch.stack(parts).sum(0), ((e, share * e) for e in vectors()), pairing)

    def _vectors(
        self, J: Linearization, probes: int | Literal["all"]
    ) -> tuple[Callable[[], Iterable[Tensor]], float]:
        """A function that yields the vectors ε, and the weight of each. Unit vectors are made one by one."""
        if probes == "all":
            return lambda: (basis(J.output_shape, J, i) for i in range(size(J.output_shape))), 1.0
        signs = [torch.where(self.random(J.output_shape, J) < 0, -1.0, 1.0) for _ in range(probes)]
        return lambda: (e.to(J.dtype) for e in signs), 1 / probes

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, probes={self.probes!r}"


class SpectralRadiusPenalty(NormPenalty):
    """weight · mean_i h(ρ(J(x_i))) with the spectral radius ρ, the largest |λ| of the eigenvalues of J.

    `penalty(J)` returns a scalar. ρ < 1 at a fixed point means that the iteration x ← f(x) converges near it.
    Raises `InputError` if the output of the model does not have the shape of its input.

    The gradient is ∂|λ| = Re(s yᵀ∂J x) for J x = λx and Jᵀy = λy, with s = λ̄/(|λ| yᵀx). These are two pairs
    of real vectors. The eigenvectors come from Arnoldi's method. It finds complex pairs from a real start,
    for which power iteration does not converge.

    max_iterations
        The largest dimension of the Krylov space. If it is the number of rows of J, the result is exact.

    Further arguments are those of `NormPenalty`.
    """

    def __init__(self, weight: float = 0.01, max_iterations: int = 32, **common: Unpack[Common]):
        super().__init__(weight, **common)
        self.max_iterations = max_iterations

    max_iterations = Setting[int](check_count)
    is_estimated = True

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        _check_square(J, "spectral radius")
        return self._found(J, self.max_iterations)

    def exactly(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        return self._found(J, max(MANY, 4 * self.max_iterations))

    def _found(self, J: Linearization, dimensions: int) -> Tensor:
        with torch.no_grad():
            e = eigenpairs(J, max_iterations=dimensions)
            radius = e.value.abs()
            known = radius * (flat(e.left) * flat(e.right)).sum(1)
            y = e.left * column(torch.where(known == 0, 0, e.value.conj() / known), e.left)
            pairs = [(y.real, e.right.real), (-y.imag, e.right.imag)]
        return self.carried(J, radius, [(u.contiguous(), v.contiguous()) for u, v in pairs])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, max_iterations={self.max_iterations}"


def _check_square(J: Linearization, what: str) -> None:
    if J.input_shape != J.output_shape:
        raise InputError(
            f"The {what} needs an output with the input's shape; J goes from {tuple(J.input_shape)} to "
            f"{tuple(J.output_shape)}."
        )
