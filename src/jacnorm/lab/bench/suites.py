"""The suites of `jacnorm bench`. Each gives plain numbers, which go into one JSON file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ... import __version__, linearize
from ...diagnosis.half import cosine
from ..data import load
from . import measuring, memory, parts, quality
from .nets import NETS, Deep, batch, make
from .networks import Network
from .timing import costs
from .ways import (
    BOUND,
    BY_HAND,
    DEFAULT,
    DOUBLE,
    EXACT,
    FROBENIUS,
    FROBENIUS_HALF,
    HALF,
    NO_INDEX,
    PUSH,
    PUSH_BY_TORCH,
    PUSH_HALF,
    WAYS,
    Way,
)

MAIN = (DEFAULT, NO_INDEX, FROBENIUS, BOUND)
COMPARED = (*MAIN, DOUBLE, "double-backward power iteration, 1 round")
ON_EVERY_NET = (
    *(DEFAULT, HALF, NO_INDEX, FROBENIUS, FROBENIUS_HALF, DOUBLE),
    *(PUSH, PUSH_HALF, PUSH_BY_TORCH, BY_HAND),
)
EPOCHS = 15
OUTPUTS = (10, 1000)  # of the nets on which measuring is timed
TRANSFORMERS = tuple(n for n in NETS if n.startswith(("vit", "transformer")))
LARGE = ("vgg16", "resnet18", "vit-192", "vit-128, 256 tokens", "vit-128, 1024 tokens")  # minutes for these:
WRITTEN_OUT = ("mlp", "vit-64", "vit-192")
UNABLE = (
    (("vgg16", "resnet18"), (PUSH_BY_TORCH,)),  # it cannot write into running statistics
    (TRANSFORMERS, ("dual numbers",)),  # no attention
    (tuple(n for n in NETS if n not in WRITTEN_OUT), (BY_HAND,)),
)
SLOW = ("spectral, budget=1.3", EXACT.name, "double-backward power iteration, 10 rounds")


def methods(network: Network, width: float) -> dict[str, Any]:
    """Costs and memory of the ways on one net."""
    net = network.net
    model, samples = make(net, width=width), batch(net, network.batch)
    ways = _ways_on(network)
    found: dict[str, Any] = {
        "jacnorm": __version__,
        "batch": network.batch,
        "width": width,
        "parameters": sum(p.numel() for p in model.parameters()),
        "cost": {},
        "parts": {},
        "memory": {},
        "memory_batch": NETS[net][2],
    }
    if network.is_timed:
        found["cost"] = costs(model, ways, samples)
        found["parts"] = parts.shares(model, samples)
        found["one_minus_cosine"] = 1 - _cosine_in_half(model, samples[0])
    if network.has_memory:
        measured = [w for w in ways if w.kind != "form"]
        found["memory"] = memory.growth(model, measured, batch(net, NETS[net][2]))
    return found


def _cosine_in_half(model: nn.Module, x: Tensor) -> float:
    """The cosine between the penalty's gradients in bfloat16 and in float32."""
    found = cosine(model, lambda precision: linearize(model, x, precision=precision))
    assert found is not None  # these nets have gradients
    return found


def _ways_on(network: Network) -> list[Way]:
    net = network.net
    ways = [w for w in WAYS if network.has_all or w.name in ON_EVERY_NET]
    ways = [w for w in ways if net not in LARGE or w.name not in SLOW]
    for nets, cannot in UNABLE:
        ways = [w for w in ways if net not in nets or w.name not in cannot]
    return ways


def batch_sizes(sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256)) -> dict[str, Any]:
    return _curve("batch size", sizes, lambda n: costs(make("lenet"), _compared(), batch("lenet", n)))


def outputs(numbers: tuple[int, ...] = (10, 100, 1000)) -> dict[str, Any]:
    return _curve("outputs", numbers, lambda n: costs(make("lenet", n), _compared(), batch("lenet", 32, n)))


def depth(depths: tuple[int, ...] = (2, 4, 8, 16)) -> dict[str, Any]:
    return _curve("convolutions", depths, lambda n: costs(Deep(n), _compared(), batch("deep", 32)))


def measuring_speed(images: int = 10_000) -> dict[str, Any]:
    few, many = OUTPUTS
    return {"rows": [measuring.speedup(few, images), measuring.speedup(many, max(20, images // 50))]}


def training(data: str, data_root: Path | None, epochs: int = EPOCHS) -> dict[str, Any]:
    """Error of σ in each epoch, and the cosines of the gradients at the end."""
    ways = [w for w in WAYS if w.estimates and "10 rounds" not in w.name and "analytical" not in w.name]
    following = quality.Following(load(data, data_root), ways)
    errors = []
    for n in range(epochs):
        errors.append(following.epoch())
        print(f"epoch {n + 1}/{epochs}: " + ", ".join(f"{k} {v:.1%}" for k, v in errors[-1].items()))
    return {
        "data": data,
        "error": {w.name: [e[w.name] for e in errors] for w in ways},
        "cosine": following.cosines(),
    }


def _compared() -> list[Way]:
    return [w for w in WAYS if w.name in COMPARED]


def _curve(what: str, numbers: tuple[int, ...], at: Callable[[int], dict[str, float]]) -> dict[str, Any]:
    found = [at(n) for n in numbers]
    return {"what": what, "numbers": numbers, "cost": {name: [f[name] for f in found] for name in found[0]}}
