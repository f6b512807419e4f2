"""The networks of the page, and the aims for the cost of a step on each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .ways import DEFAULT, DOUBLE, FROBENIUS, HALF, NO_INDEX, PUSH

MEMORY = {DEFAULT: 2.4, NO_INDEX: 2.4, FROBENIUS: 2.4, PUSH: 1.6}


@dataclass(frozen=True)
class Network:
    """A net, and the batch on which costs are measured. (Memory is measured on a larger batch, see NETS.)"""

    net: str
    batch: int
    at_most: Mapping[str, float] = field(default_factory=dict)  # cost per way, in plain steps
    of_double: float | None = None  # cost of both main penalties, in steps by double backward
    memory_at_most: Mapping[str, float] = field(default_factory=dict)  # per way; 1 is a plain step
    is_timed: bool = True
    has_memory: bool = False
    has_all: bool = False  # measure every way, not only the main ones

    @property
    def name(self) -> str:
        return f"{self.net}, batch {self.batch}"

    def aims(self, found: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
        """The name of each aim, the measured number, and the limit."""
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


# LeNet, ResNet18 and VGG16 should cost no more than in an earlier version: see `benchmarks/versions.py`.
NETWORKS = (
    Network("lenet", 32, has_memory=True, has_all=True),
    Network("lenet", 8, of_double=1.05),
    Network("lenet", 128),
    Network("mlp", 32, of_double=1.05),
    Network("gated-mlp", 64, _both(2.25, 2.2), 1.05),
    Network("critic", 32, _both(2.25, 2.2), 1.05),
    Network("vit-64", 16, _both(2.8, 2.8, push=1.5), 1.0, has_memory=True, has_all=True),
    Network("vit-192", 8, _both(2.35, 2.35, half=1.85, push=1.5), 1.05),
    Network("vit-128, 256 tokens", 16, memory_at_most=MEMORY, is_timed=False, has_memory=True),
    Network("vit-128, 1024 tokens", 2, memory_at_most=MEMORY, is_timed=False, has_memory=True),
    Network("resnet18", 8, {HALF: 1.7}, has_memory=True, has_all=True),
    Network("vgg16", 16, {HALF: 1.65}, has_memory=True, has_all=True),
)


def network(net: str, batch: int) -> Network:
    """The network of the page, or else a new one with every way."""
    other = Network(net, batch, has_memory=True, has_all=True)
    return next((n for n in NETWORKS if (n.net, n.batch) == (net, batch)), other)
