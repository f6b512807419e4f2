"""How much a model stretches small changes of the inputs at hand, in one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from .estimators import Estimate, InducedNorm, induced_norm, spectral_norm
from .estimators.induced import order
from .estimators.measure import SMALL
from .linearization import Linearization
from .recording import linearize
from .trust.checks import check_count

MAX_BYTES = 1 << 30
KRYLOV = 40  # vectors of each side that Lanczos keeps at a time, at most in practice
Two = Literal[2, "2"]
Result = TypeVar("Result", Estimate, InducedNorm)


@overload
def local_lipschitz(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    norm: Two = 2,
    tol: float = 1e-3,
    max_bytes: int = MAX_BYTES,
) -> Estimate: ...


@overload
def local_lipschitz(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    norm: Literal[1, "1", "inf"],
    tol: float = 1e-3,
    max_bytes: int = MAX_BYTES,
) -> InducedNorm: ...


@torch.no_grad()
def local_lipschitz(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    norm: float | str = 2,
    tol: float = 1e-3,
    max_bytes: int = MAX_BYTES,
) -> Estimate | InducedNorm:
    """The local Lipschitz constant of `model` at each sample of `x`: ‖J(x_i)‖.

    THIS IS NOT A CERTIFICATE. It is the number at these points, the smallest constant that holds for
    infinitely small changes of them. Over a ball of any radius, and at other points, the true constant can be
    larger. To certify robustness take a method that bounds the whole ball.

    norm
        How changes of the input are measured: 2, 1 or "inf"; those of the output always in the 2-norm.
        For 2 an `Estimate` comes back, with `sigma` and how far off it may be; for the others an
        `InducedNorm`, with `lower` and `upper`.

    max_bytes
        About how much memory to take. Large sets are measured in parts that fit; one sample is the least.

    The model runs in the mode it is in: call model.eval() first, unless you mean the network in training.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    >>> L = local_lipschitz(model, torch.randn(5, 1, 2, 2))
    >>> L.sigma.shape, bool(L.converged.all())
    (torch.Size([5]), True)
    >>> torch.allclose(L.sigma, torch.linalg.matrix_norm(model[1].weight, 2))
    True
    """
    p = order(norm)
    check_count("max_bytes", max_bytes)

    def measure(part: Tensor) -> Any:
        J = linearize(model, part)
        return spectral_norm(J, tol=tol) if p == 2 else induced_norm(J, p)

    if not isinstance(x, Tensor) or x.dim() == 0 or len(x) == 1 or not _can_be_taken_apart(model):
        return _joined([measure(x)])
    size = max(1, max_bytes // _bytes_of_one(linearize(model, x[:1])))
    return _joined([measure(part) for part in x.split(size)])


def _bytes_of_one(J: Linearization) -> int:
    """What measuring a sample takes: its activations, recorded and on the way, and the vectors of the method,
    all rows of J or a Krylov basis of both sides."""
    n_in, n_out = J.input_shape.numel(), J.output_shape.numel()
    vectors = 2 * min(n_in, n_out) * n_in if min(n_in, n_out) <= SMALL else KRYLOV * (n_in + n_out)
    return 3 * J.activation_bytes + J.output.element_size() * vectors


def _can_be_taken_apart(model: Any) -> bool:
    """Samples may share the batch's statistics in training, and in batch norm that keeps no others."""
    owner = getattr(model, "__self__", model)
    return isinstance(owner, nn.Module) and not any(
        m.training or (isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is None)
        for m in owner.modules()
    )


def _joined(parts: Sequence[Result]) -> Result:
    """One result of many: samples in a row, the numbers of rounds at their largest."""
    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(parts[0])):
        values = [getattr(part, name) for part in parts]
        joined[name] = torch.cat(values) if isinstance(values[0], Tensor) else max(values)
    return type(parts[0])(**joined)
