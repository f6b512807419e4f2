"""What stands out in the numbers of a run: the lines of a report, and what makes them doubtful."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

from .judge import are_suspicious

Row = tuple[str, float, str]  # what, how much, and the format of that


def shown(value: float, form: str) -> str:
    """
    >>> shown(0.975, ".2%"), shown(math.inf, ".3f")
    ('97.50%', 'none found')
    """
    return f"{value:{form}}" if value != math.inf else "none found"


def rows(record: dict[str, Any]) -> list[Row]:
    """All that was evaluated, in a number each; the rest is in the figures and the JSON."""
    test = record["test"]
    first = [
        ("accuracy", test["accuracy"], ".2%"),
        ("loss", test["loss"], ".4f"),
        ("mean σ, normalized input", test["sigma"], ".3f"),
    ]
    parts = {
        "noise": _noise,
        "attacks": _attacks,
        "judge": _judge,
        "boundary": _boundary,
        "calibration": lambda c: [("expected calibration error", c["ece"], ".4f")],
        "landscape": _landscape,
        "cost": _cost,
    }
    return first + [row for name, part in parts.items() if name in record for row in part(record[name])]


def alarms(record: dict[str, Any]) -> list[str]:
    """Signs that gradients are masked, so that robustness is overestimated."""
    found = [record["judge"]["alarm"]] if record.get("judge", {}).get("alarm") else []
    attacks = record.get("attacks", {})
    if "square" in attacks and (others := [a for a in ("pgd", "tpgd") if a in attacks]):
        best = min(attacks[a]["worst"][-1][-1] for a in others)
        black_box = attacks["square"]["worst"][-1][-1]
        if are_suspicious(round((best - black_box) * record["images"]), record["images"]):
            found.append(
                f"Square, which sees no gradient, leaves {black_box:.2%} right and the gradient attacks "
                f"{best:.2%}: gradients may be masked, or the gradient attacks too short"
            )
    return found


def _noise(n: dict[str, Any]) -> Iterator[Row]:
    for variance, accuracy in zip(n["variances"], n["accuracy"], strict=True):
        if variance:
            yield f"accuracy, noise of variance {variance:g}", accuracy, ".2%"


def _attacks(attacks: dict[str, Any]) -> Iterator[Row]:
    for name, a in attacks.items():
        radius = f"ε = {255 * a['epsilons'][-1]:g}/255"
        attack = f"accuracy, {name} of {a['iterations'][-1]} iterations, {radius}"
        yield f"{attack}, worst so far", a["worst"][-1][-1], ".2%"
        yield f"{attack}, last iterate", a["last"][-1][-1], ".2%"


def _judge(j: dict[str, Any]) -> Iterator[Row]:
    for name, robust in zip(j["attacks"], j["robust"], strict=True):
        yield f"robust accuracy, ε = {255 * j['epsilon']:g}/255, after {name}", robust, ".2%"


def _boundary(b: dict[str, Any]) -> Iterator[Row]:
    names = {
        "first_order": "to first order",
        "attack": "by attack",
        "sampled": f"by {b['directions']} directions",
    }
    for key, text in names.items():
        middle = median(math.inf if d is None else d for d in b[key])  # not found is far away
        yield f"median distance to the boundary, {text}", middle, ".3f"
    yield "misclassified by a network, left out", b["left_out"], ".0f"


def _landscape(part: dict[str, Any]) -> list[Row]:
    return [
        ("mean slope of the loss, ‖∇ₓ loss‖", part["slope"], ".3f"),
        ("its curvature along an attack's step", part["curvature"], ".3f"),
    ]


def _cost(cost: dict[str, Any]) -> Iterator[Row]:
    times, errors = cost["times"], cost["estimation"]
    size = times["batch_sizes"][-1]
    for name, ratio in times["ratio"].items():
        if name != "plain":
            yield f"time of {name}, batch {size}, plain step = 1", ratio[-1], ".2f"
    for name in ("random", "warm", "lanczos"):
        if errors[name] is not None:
            start = f"{name} start" if name != "lanczos" else "Lanczos"
            yield f"error of σ on train images, {start}, 1 round", errors[name][0], ".1%"
    if errors["bound"] is not None:
        yield "error of σ on train images, product of the layers' norms", errors["bound"], ".1%"
