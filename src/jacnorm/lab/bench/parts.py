"""Where the time of a step with the spectral penalty goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from ... import linearize
from ...engines.pairing import Pairing
from ...estimators.operator import normalized, norms
from .timing import Batch

Result = TypeVar("Result")
ROUNDS = 30
SECONDS = 4.0  # for all rounds; a large net has fewer


def shares(model: nn.Module, batch: Batch) -> dict[str, float]:
    """Median time of each part, in units of the plain forward and backward pass of the same round."""
    begin, found = time.thread_time(), list[dict[str, float]]()
    while len(found) < ROUNDS and (len(found) < 3 or time.thread_time() - begin < SECONDS):
        parts = _once(model, batch)
        if parts is not None:
            found.append(parts)
    return {name: median(f[name] for f in found) for name in found[0]}


def _once(model: nn.Module, batch: Batch) -> dict[str, float] | None:
    """None if the model was verified in this round. For a large net, that is half of its few rounds."""
    x, labels, _ = batch
    clock = _Clock()
    output = clock.time("forward", lambda: model(x))
    clock.time("backward", F.cross_entropy(output, labels).backward)
    J = clock.time("recorded forward", lambda: linearize(model, x))
    loss = F.cross_entropy(J.output, labels)
    # The terms of the penalty go through the same graph again.
    clock.time("backward of the recorded", lambda: loss.backward(retain_graph=True))
    u = normalized(J.output.detach())
    pairing = Pairing()
    with torch.no_grad():
        v = clock.time("Jᵀu", lambda: J.vjp(u, pairing))
        w = clock.time("J v and the terms", lambda: J.jvp(normalized(v), pairing))
    sigma = pairing.handed_over(norms(w).mean(), 1 / len(u))
    clock.time("terms handed over", lambda: sigma.backward(retain_graph=True))
    model.zero_grad()
    if J.verified:
        return None
    plain = clock.seconds["forward"] + clock.seconds["backward"]
    return {name: seconds / plain for name, seconds in clock.seconds.items()}


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, part: Callable[[], Result]) -> Result:
        begin = time.thread_time()
        result = part()
        self.seconds[name] = time.thread_time() - begin
        return result
