"""One check for every network: its products and their gradients, in each way there is, are the oracle's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from oracles import assert_near, gradient, pull, push
from torch import Tensor, nn

import jacnorm as jn
from jacnorm.engines.pairing import Pairing


class Behind(nn.Module):
    """f(w · x) with a weight w that learns, so that every step of f has to hand a gradient on."""

    def __init__(self, model: Callable[[Tensor], Tensor], x: Tensor):
        super().__init__()
        self.model = model
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, x[0].numel(), dtype=x.dtype).view(x[0].shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.weight * x)


def ways(J: jn.Linearization, u: Tensor, v: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Numbers whose gradient is that of uᵀJ v: through a product, and paired, as penalties take it."""
    yield "through J v", (J.jvp(v) * u).sum()
    yield "through Jᵀu", (J.vjp(u) * v).sum()
    for first in ("push", "pull"):
        pairing = Pairing()
        with torch.no_grad():
            for sweep in ("push", "pull") if first == "push" else ("pull", "push"):
                J.jvp(v, pairing) if sweep == "push" else J.vjp(u, pairing)
        yield f"paired, {first} first", pairing.handed_over(torch.zeros((), dtype=J.dtype), 1.0)


def assert_products(J: jn.Linearization, D: Tensor, tolerance: float) -> None:
    """J v, Jᵀu and J itself."""
    v, u = torch.randn(J.input_shape, dtype=D.dtype), torch.randn(J.output_shape, dtype=D.dtype)
    assert_near(J.jvp(v), push(D, v), tolerance)
    assert_near(J.vjp(u), pull(D, u), tolerance)
    assert_near(J.dense(), D, tolerance)


def assert_gradients(J: jn.Linearization, D: Tensor, of: nn.Module | list[Tensor], tolerance: float) -> None:
    """The gradient of uᵀJ v in all parameters, in each way."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(4)
    u = torch.randn(J.output_shape, dtype=D.dtype, generator=generator)
    v = torch.randn(J.input_shape, dtype=D.dtype, generator=generator)
    expected = gradient((push(D, v) * u.reshape(len(u), -1)).sum(), of)
    for way, value in ways(J, u, v):
        try:
            assert_near(gradient(value, of), expected, tolerance)
        except AssertionError as error:
            raise AssertionError(f"The gradient {way}: {error}") from None
