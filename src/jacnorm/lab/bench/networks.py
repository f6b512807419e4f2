"""The networks of the page, and what a step on each is meant to cost at most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .ways import DEFAULT, DOUBLE, FROBENIUS, HALF, NO_INDEX, PUSH

MEMORY = {DEFAULT: 2.4, NO_INDEX: 2.4, FROBENIUS: 2.4, PUSH: 1.6}


@dataclass(frozen=True)
class Network:
    """A net, and the batch that costs are measured on. (Memory is measured on a larger one, see NETS.)"""

    net: str
    batch: int
    at_most: Mapping[str, float] = field(default_factory=dict)  # of each way, in plain steps
    of_double: float | None = None  # of the spectral and the Frobenius penalty, in steps by double backward
    memory_at_most: Mapping[str, float] = field(default_factory=dict)  # of each way, in that of plain steps
    is_timed: bool = True
    has_memory: bool = False
    has_all: bool = False  # every way is measured, not the main ones alone

    @property
    def name(self) -> str:
        return f"{self.net}, batch {self.batch}"

    def aims(self, found: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
        """What is compared, what was measured, and what it is to be at most."""
        cost, memory = found["cost"], found["memory"]
        yield from ((way, cost[way], most) for way, most in self.at_most.items() if way in cost)
        if self.of_double is not None and DOUBLE in cost:
            for way in (DEFAULT, FROBENIUS):
                yield f"{way}, in steps by double backward", cost[way] / cost[DOUBLE], self.of_double
        for way, most in self.memory_at_most.items():
            if way in memory:
                yield f"memory, {way}", memory[way] / memory["plain"], most


def _both(index: float, frobenius: float, **more: float) -> dict[str, float]:
    names = {"half": HALF, "push": PUSH}
    return {DEFAULT: index, FROBENIUS: frobenius} | {names[name]: most for name, most in more.items()}


# "No dearer than before" is what version 0.1 took.
NETWORKS = (
    Network("lenet", 32, _both(2.1, 2.0), has_memory=True, has_all=True),
    Network("lenet", 8, of_double=1.05),
    Network("lenet", 128, {DEFAULT: 1.6, HALF: 1.6}),
    Network("mlp", 32, of_double=1.05),
    Network("gated-mlp", 64, _both(2.25, 2.2), 1.05),
    Network("critic", 32, _both(2.25, 2.2), 1.05),
    Network("vit-64", 16, _both(2.8, 2.8, push=1.5), 1.0, has_memory=True, has_all=True),
    Network("vit-192", 8, _both(2.35, 2.35, half=1.85, push=1.5), 1.05),
    Network("vit-128, 256 tokens", 16, memory_at_most=MEMORY, is_timed=False, has_memory=True),
    Network("vit-128, 1024 tokens", 2, memory_at_most=MEMORY, is_timed=False, has_memory=True),
    Network("resnet18", 8, _both(2.15, 1.85, half=1.7), has_memory=True, has_all=True),
    Network("vgg16", 16, _both(2.15, 1.95, half=1.65), has_memory=True, has_all=True),
)


def network(net: str, batch: int) -> Network:
    """That of the page, or another with every way."""
    other = Network(net, batch, has_memory=True, has_all=True)
    return next((n for n in NETWORKS if (n.net, n.batch) == (net, batch)), other)
