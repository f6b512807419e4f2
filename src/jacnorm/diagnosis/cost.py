"""The cost of a training step with the penalty, measured on this model and this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..linearization import Linearization
from ..penalties import SpectralPenalty
from ..pytorch.live import Live
from ..pytorch.modules import modules_of, named_parameters, unchanged
from ..pytorch.outputs import Output, chosen
from ..recording import linearize
from .examiner import wait_for
from .half import HALF, Half, cosine, why_no_half

SECONDS = 1.5  # the time for measuring; it takes longer only if three rounds do
LEAST_ROUNDS = 3

Watch = Callable[[Iterable[int]], Iterable[int]]


@dataclass(frozen=True)
class Cost:
    """Seconds and memory of a forward and backward pass: plain, with penalty(J), with penalty(J, index=idx).

    The three take turns for several rounds. The fastest round counts, because it was disturbed least.
    """

    plain: float
    penalty: float
    with_index: float
    memory: tuple[int, int] | None  # peak bytes of the first two, without the weights
    half: Half | str  # with precision=torch.bfloat16, or why that is of no use

    @property
    def ratio(self) -> float:
        return self.penalty / self.plain

    @property
    def ratio_with_index(self) -> float:
        return self.with_index / self.plain

    @property
    def ratio_in_half(self) -> float | None:
        return self.half.seconds / self.plain if isinstance(self.half, Half) else None


def step_cost(
    model: Any, x: Tensor, at: str | None = None, output: Output = None, watch: Watch = iter
) -> Cost | None:
    """The cost of a step, or None if there is nothing to train. `watch` wraps the rounds, as tqdm does."""
    penalty, stored, index = SpectralPenalty(), SpectralPenalty(), torch.arange(len(x), device=x.device)
    x = x.detach()

    def plain() -> Tensor:
        return chosen(model(x.clone()), output, len(x))[0].square().mean()

    def linearized(precision: torch.dtype | None = None) -> Linearization:
        return linearize(model, x, at=at, output=output, precision=precision)

    def with_penalty() -> Tensor:
        J = linearized()
        return J.output.square().mean() + penalty(J)

    def with_index(precision: torch.dtype | None = None) -> Tensor:
        J = linearized(precision)
        return J.output.square().mean() + stored(J, index=index)

    with unchanged(modules_of(model), x.device), torch.enable_grad():
        if not plain().requires_grad:
            return None
        why_not, losses = why_no_half(linearized()), [plain, with_penalty, with_index]
        if why_not is None:
            losses.append(partial(with_index, HALF))
        times = _quickest(losses, x.device, watch)
        half = why_not or Half(times[3], cosine(model, linearized))
        return Cost(times[0], times[1], times[2], _memory(model, x, plain, with_penalty), half)


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
    """The memory of two steps, or None if the model cannot run under a dispatch mode (TorchScript cannot)."""
    try:
        plain, penalty = (_peak(loss, model, x) for loss in losses)
    except RuntimeError:
        return None
    return plain, penalty


def _peak(loss: Callable[[], Tensor], model: Any, x: Tensor) -> int:
    """The smaller peak of two steps, because the model may be verified in one of them."""
    found = []
    weights = [t for m in modules_of(model).values() for t in (*m.parameters(), *m.buffers())]
    for _ in range(2):
        for _, p in named_parameters(modules_of(model)):
            p.grad = None
        with Live([x, *weights]) as live:
            loss().backward()
        found.append(live.most)
    return min(found)
