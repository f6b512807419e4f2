"""What `jacnorm bench` can measure. Each suite gives plain numbers, which go into one JSON file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data import load
from . import measuring, memory, parts, quality
from .nets import NETS, Deep, batch, make
from .timing import costs
from .ways import BY_HAND, EXACT, WAYS, Way

MAIN = ("spectral, index=", "spectral, no index", "Frobenius", "Spectral-Bound")
COMPARED = (*MAIN, "Frobenius, double backward", "double-backward power iteration, 1 round")
EPOCHS = 15
OUTPUTS = (10, 1000)  # of the nets that are measured
LARGE = ("vgg16", "resnet18", "vit-192", "vit-128, 256 tokens", "vit-128, 1024 tokens")  # minutes for these:
UNABLE = (
    (("vgg16", "resnet18"), ("J v alone, torch.func.jvp",)),  # it cannot write into running statistics
    (tuple(n for n in NETS if n.startswith(("vit", "transformer"))), ("dual numbers",)),  # no attention
    (tuple(n for n in NETS if n != "mlp"), (BY_HAND,)),
)
SLOW = ("spectral, budget=1.3", EXACT.name, "double-backward power iteration, 10 rounds")


def methods(net: str, size: int, width: float) -> dict[str, Any]:
    """Every way on one net: its cost and the memory it takes."""
    model = make(net, width=width)
    ways = [w for w in WAYS if net not in LARGE or w.name not in SLOW]
    for nets, cannot in UNABLE:
        ways = [w for w in ways if net not in nets or w.name not in cannot]
    memory_batch = NETS[net][2]
    measured = [w.name for w in ways if w.kind != "form"]
    return {
        "batch": size,
        "width": width,
        "parameters": sum(p.numel() for p in model.parameters()),
        "cost": costs(model, ways, batch(net, size)),
        "parts": parts.shares(model, batch(net, size)),
        "memory": memory.growth(net, memory_batch, measured, width),
        "memory_batch": memory_batch,
    }


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
    """Error of σ after each epoch, and the angle of the gradients at the end."""
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
