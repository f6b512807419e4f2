"""What a training step costs with the penalty, measured on this model and this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..penalties import SpectralPenalty
from ..pytorch.live import Live
from ..pytorch.modules import modules_of, named_parameters, unchanged
from ..pytorch.outputs import Output, chosen
from ..recording import linearize
from .examiner import wait_for

SECONDS = 1.5  # more only where three rounds take longer
LEAST_ROUNDS = 3

Watch = Callable[[Iterable[int]], Iterable[int]]


@dataclass(frozen=True)
class Cost:
    """Seconds and memory of a forward and backward pass: plain, with penalty(J), with penalty(J, index=idx).

    They take turns, and the quickest of several rounds counts: it is the one that nothing disturbed.
    """

    plain: float
    penalty: float
    with_index: float
    memory: tuple[int, int] | None  # bytes at the peak of the first two, without the weights

    @property
    def ratio(self) -> float:
        return self.penalty / self.plain

    @property
    def ratio_with_index(self) -> float:
        return self.with_index / self.plain


def step_cost(
    model: Any, x: Tensor, at: str | None = None, output: Output = None, watch: Watch = iter
) -> Cost | None:
    """None if there is nothing to train. `watch` goes round the rounds, as tqdm does."""
    penalty, stored, index = SpectralPenalty(), SpectralPenalty(), torch.arange(len(x), device=x.device)
    x = x.detach()

    def plain() -> Tensor:
        return chosen(model(x.clone()), output, len(x))[0].square().mean()

    def with_penalty() -> Tensor:
        J = linearize(model, x, at=at, output=output)
        return J.output.square().mean() + penalty(J)

    def with_index() -> Tensor:
        J = linearize(model, x, at=at, output=output)
        return J.output.square().mean() + stored(J, index=index)

    with unchanged(modules_of(model), x.device), torch.enable_grad():
        if not plain().requires_grad:
            return None
        times = _quickest([plain, with_penalty, with_index], x.device, watch)
        return Cost(times[0], times[1], times[2], _memory(model, x, plain, with_penalty))


def _quickest(losses: list[Callable[[], Tensor]], device: torch.device, watch: Watch) -> list[float]:
    rounds = [[_time_of(loss, device) for loss in losses] for _ in watch(_while_there_is_time())]
    return [min(times) for times in zip(*rounds, strict=True)]


def _while_there_is_time() -> Iterator[int]:
    end = time.perf_counter() + SECONDS
    done = 0
    while done < LEAST_ROUNDS or time.perf_counter() < end:
        yield done
        done += 1


def _time_of(loss: Callable[[], Tensor], device: torch.device) -> float:
    begin = time.perf_counter()
    loss().backward()
    wait_for(device)
    return time.perf_counter() - begin


def _memory(model: Any, x: Tensor, *losses: Callable[[], Tensor]) -> tuple[int, int] | None:
    """None where the model runs, but not while it is watched: TorchScript does not."""
    try:
        plain, penalty = (_peak(loss, model, x) for loss in losses)
    except RuntimeError:
        return None
    return plain, penalty


def _peak(loss: Callable[[], Tensor], model: Any, x: Tensor) -> int:
    """Of two steps, since the model may be verified in one of them."""
    found = []
    weights = [t for m in modules_of(model).values() for t in (*m.parameters(), *m.buffers())]
    for _ in range(2):
        for _, p in named_parameters(modules_of(model)):
            p.grad = None
        with Live([x, *weights]) as live:
            loss().backward()
        found.append(live.most)
    return min(found)
