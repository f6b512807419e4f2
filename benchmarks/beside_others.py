"""Time and memory of a step, beside what people use today: the table of README.md.

    python benchmarks/beside_others.py [NET BATCH]

Both over those of a plain step of the same network, in one run, one thread. The networks are those of
`jacnorm bench`: "lenet 32" by default, "vit-64 16" for a transformer.
"""

import copy
import sys
from collections.abc import Callable
from statistics import median

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from jacnorm.lab.bench.memory import growth_of
from jacnorm.lab.bench.nets import batch, make
from jacnorm.lab.bench.timing import block, stepper
from jacnorm.lab.bench.ways import WAYS

ROUNDS = 15
KNOWN = {way.name: way.make for way in WAYS}
ROWS = {
    "jacnorm, SpectralPenalty with index=": "spectral, index=",
    "jacnorm, SpectralPenalty": "spectral, no index",
    "jacnorm, FrobeniusPenalty": "Frobenius",
    "jacobian_regularizer, n=1": "Frobenius, double backward",
    "deepinv, ten rounds": "double-backward power iteration, 10 rounds",
    "by hand: double backward, one round": "double-backward power iteration, 1 round",
}


def with_spectral_norm(model: nn.Module) -> nn.Module:
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        if isinstance(module, nn.Linear | nn.Conv2d):
            spectral_norm(module)
    return model


def main(net: str, size: int) -> None:
    torch.set_num_threads(1)
    model, data = make(net), batch(net, size)
    ways: dict[str, tuple[nn.Module, Callable | None]] = {
        **{row: (model, KNOWN[name]) for row, name in ROWS.items()},
        "torch, spectral_norm of every layer": (with_spectral_norm(model), None),
    }
    plain, memory = stepper(model, None, data), growth_of(model, None, data)
    steps = {row: stepper(net, way, data) for row, (net, way) in ways.items()}
    ratios: dict[str, list[float]] = {row: [] for row in steps}
    for step in (plain, *steps.values()) * 2:  # verified here
        block(step, 4)
    for _ in range(ROUNDS):
        before = block(plain, 4)
        for row, step in steps.items():
            ratios[row].append(block(step, 4) / before)
    print(f"| {net}, batch {size} | time | memory |\n|---|--:|--:|")
    for row, (net_of_row, way) in ways.items():
        print(f"| {row} | {median(ratios[row]):.1f} | {growth_of(net_of_row, way, data) / memory:.1f} |")


if __name__ == "__main__":
    main(*(sys.argv[1], int(sys.argv[2])) if sys.argv[1:] else ("lenet", 32))
