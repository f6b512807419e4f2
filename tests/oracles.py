"""What numbers are compared with: dense Jacobians by PyTorch's own autograd, and plain linear algebra.

Nothing here uses jacnorm, and nothing is made to be fast. D is always a dense Jacobian, (B, n_out, n_in).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def dense(model: Callable[[Tensor], Tensor], x: Tensor, *, flowing: bool = True) -> Tensor:
    """D[b, o, i] = ∂f(x)[b, o] / ∂x[b, i]: row o is the gradient of ∑_b f(x)[b, o], for independent samples.

    It can be differentiated again, in all that the model reads, and in x if x wants gradients.
    Batch norm in training mode counts as an affine map with the statistics of this batch
    (pseudo-inference). They do not depend on x; on the weights they do if `flowing`.
    """
    statistics: list[tuple[Tensor, Tensor]] = []
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        with _left_alone(model), _spelled_out(statistics, collect=True):
            model(x.clone())
        if not flowing:
            statistics = [(mean.detach(), var.detach()) for mean, var in statistics]
        z = x.clone() if x.requires_grad else x.clone().requires_grad_()
        with _left_alone(model), _spelled_out(statistics, collect=False):
            y = model(z.clone())
    rows = [
        torch.autograd.grad(sample_sum, z, create_graph=True, materialize_grads=True)[0].reshape(len(x), -1)
        for sample_sum in y.reshape(len(x), -1).sum(0)
    ]
    return torch.stack(rows, 1)


@contextmanager
def _left_alone(model: Any) -> Iterator[None]:
    """Buffers that the run moves are put back, such as the vectors of `spectral_norm`."""
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    before = [buffer.clone() for buffer in buffers]
    yield
    with torch.no_grad():
        for buffer, value in zip(buffers, before, strict=True):
            if not torch.equal(buffer, value):
                buffer.copy_(value)


@contextmanager
def _spelled_out(statistics: list[tuple[Tensor, Tensor]], *, collect: bool) -> Iterator[None]:
    """Batch norm in training appends its statistics, or takes those of an earlier run from the list.

    Hardsigmoid is written by relu6, since PyTorch's own has no second derivative. Its slope is PyTorch's:
    1/6 in single precision.
    """
    original, sixth = F.batch_norm, float(torch.tensor(1 / 6))

    def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        if not training:
            return original(x, mean, var, weight, bias, False, momentum, eps)
        over = [axis for axis in range(x.dim()) if axis != 1]
        if collect:
            statistics.append((x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)))
        mean, var = statistics[-1] if collect else statistics.pop(0)
        y = (x - mean) / torch.sqrt(var + eps)
        y = y if weight is None else y * weight.view(mean.shape)
        return y if bias is None else y + bias.view(mean.shape)

    def hardsigmoid(x, inplace=False):
        y = sixth * F.relu6(x + 3)
        return y + (F.relu6(x + 3) / 6 - y).detach()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "batch_norm", batch_norm)
        patch.setattr(F, "hardsigmoid", hardsigmoid)
        yield


def push(D: Tensor, v: Tensor) -> Tensor:
    """J v for each sample, (B, n_out); v may have the input's shape."""
    return torch.einsum("boi,bi->bo", D, v.reshape(len(D), -1))


def pull(D: Tensor, u: Tensor) -> Tensor:
    """Jᵀu for each sample, (B, n_in); u may have the output's shape."""
    return torch.einsum("boi,bo->bi", D, u.reshape(len(D), -1))


def mean_sigma(D: Tensor) -> Tensor:
    """The mean of ‖J‖₂ over the samples."""
    return torch.linalg.matrix_norm(D, 2).mean()


def mean_square(D: Tensor) -> Tensor:
    """The mean of ‖J‖_F² over the samples."""
    return D.square().sum((1, 2)).mean()


def top_left(D: Tensor) -> Tensor:
    """u₁, the left singular vector of the largest singular value, (B, n_out)."""
    return torch.linalg.svd(D.detach(), full_matrices=False).U[:, :, 0]


def gradient(value: Tensor, of: nn.Module | Iterable[Tensor]) -> Tensor:
    """∂value/∂θ as one vector, over all parameters θ; zero for those that it does not depend on."""
    given = of.parameters() if isinstance(of, nn.Module) else of
    parameters = [p for p in given if p.requires_grad]
    if not parameters or not value.requires_grad:
        return torch.cat([value.new_zeros(0), *(torch.zeros_like(p).flatten() for p in parameters)])
    found = torch.autograd.grad(
        value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.cat([g.flatten() for g in found])


def arrived(model: nn.Module) -> Tensor:
    """What backward() has left in the parameters, as one vector like that of `gradient`."""
    return torch.cat(
        [
            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
            for p in model.parameters()
            if p.requires_grad
        ]
    )


def slope(f: Callable[[float], Tensor], step: float = 1e-5) -> Tensor:
    """f'(0) by a central difference, (f(h) - f(-h)) / 2h, where autograd itself is in doubt."""
    return (f(step) - f(-step)) / (2 * step)


def with_spectrum(values: list[float], m: int, n: int, batch: int = 2) -> Tensor:
    """U diag(values) Vᵀ in float64, (batch, m, n): random singular vectors, chosen singular values."""
    U = torch.linalg.qr(torch.randn(batch, m, len(values), dtype=torch.float64)).Q
    V = torch.linalg.qr(torch.randn(batch, n, len(values), dtype=torch.float64)).Q
    return U * torch.tensor(values, dtype=torch.float64) @ V.mT


def assert_near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Each number relative to itself, or to the largest that is expected."""
    found, expected = found.detach(), expected.detach().reshape(found.shape)
    size = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * size)
