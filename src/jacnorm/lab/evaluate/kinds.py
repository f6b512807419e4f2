"""The table of evaluations. `jacnorm evaluate` and the paper's figures run them from here."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from .. import checkpoint
from ..classification import trained_on
from ..config import RunConfig
from ..data import DataSet, Split
from ..nets import Normalized
from ..run_files import RunFiles
from .adversarial import EPSILON, adversarial
from .boundary import DIRECTIONS, boundary
from .character import calibration, landscape
from .estimation import ITERATIONS, estimation
from .judge import judge
from .noise import VARIANCES, white_noise
from .times import BATCH_SIZES, REPEATS, step_times

COST_IMAGES = 1000  # enough for a mean

Row = tuple[str, float, str]  # name, number, and its format


@dataclass(frozen=True)
class Trained:
    """A finished run, in memory."""

    folder: Path
    config: RunConfig
    model: Normalized


@dataclass(frozen=True)
class Setup:
    """Data and settings of the evaluation of all networks."""

    data: DataSet
    split: Split
    trained: Sequence[Trained]
    images: int | None = None  # number of train images for the cost
    variances: tuple[float, ...] = VARIANCES  # of noise
    attacks: Sequence[str] = ()
    epsilon: float = EPSILON
    iterations: tuple[int, ...] | None = None  # of an attack, if they are not its default
    directions: int = DIRECTIONS
    batch_sizes: tuple[int, ...] = BATCH_SIZES  # of `cost`, as the next two
    repeats: int = REPEATS
    rounds: tuple[int, ...] = ITERATIONS


@dataclass(frozen=True)
class Evaluation:
    text: str  # help of its option
    run: Callable[[Trained, Setup], Iterable[dict[str, Any]]]  # its numbers; the last are complete
    rows: Callable[[dict[str, Any]], Iterable[Row]]  # numbers for a table; pictures are in figures/draw.py
    uses_foolbox: bool = False
    of_pixels: bool = True  # images in [0, 1]


def rows(record: dict[str, Any]) -> list[Row]:
    """The rows of all evaluations in a record."""
    test = record["test"]
    of_tokens = record["config"].get("tokens") or record["config"].get("at")
    inputs = "the tokens' embedding" if of_tokens else "normalized input"
    first = [
        ("accuracy", test["accuracy"], ".2%"),
        ("loss", test["loss"], ".4f"),
        (f"mean σ, {inputs}", test["sigma"], ".3f"),
    ]
    return first + [row for name, e in EVALUATIONS.items() if name in record for row in e.rows(record[name])]


def shown(value: float, form: str) -> str:
    """
    >>> shown(0.975, ".2%"), shown(math.inf, ".3f")
    ('97.50%', 'none found')
    """
    return f"{value:{form}}" if value != math.inf else "none found"


def _attacks(one: Trained, setup: Setup) -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {}
    for name in setup.attacks:
        how: dict[str, Any] = {"epsilons": (setup.epsilon,), "iterations": setup.iterations}
        attacked = adversarial(one.model, setup.split, name, **how)
        yield (found := found | {name: attacked.to_json()})


def _boundary(one: Trained, setup: Setup) -> list[dict[str, Any]]:
    """Only points that all of these networks classify correctly."""
    models = [other.model for other in setup.trained]
    found = boundary(one.model, setup.split, compared_with=models, directions=setup.directions)
    return [found.to_json() | {"compared_with": sorted(other.config.id for other in setup.trained)}]


def _cost(one: Trained, setup: Setup) -> list[dict[str, Any]]:
    """Measured on the training images, as in the paper."""
    n = setup.images or COST_IMAGES
    train = trained_on(one.config, setup.data).train.to(one.model.mean.device)
    few = Split(train.images[:n], train.labels[:n])
    sizes = tuple(size for size in setup.batch_sizes if size <= len(few)) or (len(few),)
    times = step_times(one.model, few, batch_sizes=sizes, repeats=setup.repeats)
    vectors = _stored_vectors(one.folder, one.config)
    stored = None if vectors is None else vectors[: len(few)]
    errors = estimation(one.model, few, stored=stored, iterations=setup.rounds)
    return [{"times": times.to_json(), "estimation": errors.to_json()}]


def _stored_vectors(folder: Path, config: RunConfig) -> Tensor | None:
    """The u of each train image at the end of training. None if there are none or the file is missing."""
    if config.method != "spectral" or not config.warm_start:
        return None
    file = RunFiles(folder).checkpoint
    if not file.exists():  # as for published networks
        print(f"{folder}: no {file.name}, so no error from stored vectors", file=sys.stderr)
        return None
    tensors, _ = checkpoint.load(file)
    return checkpoint.part("penalty", tensors)["u"]


def _noise_rows(n: dict[str, Any]) -> Iterator[Row]:
    for variance, accuracy in zip(n["variances"], n["accuracy"], strict=True):
        if variance:
            yield f"accuracy, noise of variance {variance:g}", accuracy, ".2%"


def _attack_rows(attacks: dict[str, Any]) -> Iterator[Row]:
    for name, a in attacks.items():
        radius = f"ε = {255 * a['epsilons'][-1]:g}/255"
        attack = f"accuracy, {name} of {a['iterations'][-1]} iterations, {radius}"
        yield f"{attack}, worst so far", a["worst"][-1][-1], ".2%"
        yield f"{attack}, last iterate", a["last"][-1][-1], ".2%"


def _judge_rows(j: dict[str, Any]) -> Iterator[Row]:
    for name, robust in zip(j["attacks"], j["robust"], strict=True):
        yield f"robust accuracy, ε = {255 * j['epsilon']:g}/255, after {name}", robust, ".2%"


def _boundary_rows(b: dict[str, Any]) -> Iterator[Row]:
    names = {
        "first_order": "to first order",
        "attack": "by attack",
        "sampled": f"by {b['directions']} directions",
    }
    for key, text in names.items():
        middle = median(math.inf if d is None else d for d in b[key])  # no boundary found counts as far away
        yield f"median distance to the boundary, {text}", middle, ".3f"
    yield "misclassified by a network, left out", b["left_out"], ".0f"


def _landscape_rows(part: dict[str, Any]) -> Iterator[Row]:
    yield "mean slope of the loss, ‖∇ₓ loss‖", part["slope"], ".3f"
    yield "its curvature along an attack's step", part["curvature"], ".3f"


def _cost_rows(cost: dict[str, Any]) -> Iterator[Row]:
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


EVALUATIONS = {
    "noise": Evaluation(
        "accuracy with white noise (section 4.2.1)",
        lambda one, setup: [white_noise(one.model, setup.split, variances=setup.variances).to_json()],
        _noise_rows,
    ),
    "attacks": Evaluation("any of pgd,tpgd,square (section 4.2.2)", _attacks, _attack_rows),
    "judge": Evaluation(
        "robust accuracy against four strong attacks, the worst for each image",
        lambda one, setup: [judge(one.model, setup.split, epsilon=setup.epsilon).to_json()],
        _judge_rows,
        uses_foolbox=True,
    ),
    "boundary": Evaluation(
        "distance to the decision boundary (section 4.2.3)",
        _boundary,
        _boundary_rows,
        uses_foolbox=True,
    ),
    "calibration": Evaluation(
        "whether the network's confidence agrees with its accuracy",
        lambda one, setup: [calibration(one.model, setup.split).to_json()],
        lambda found: [("expected calibration error", found["ece"], ".4f")],
        of_pixels=False,
    ),
    "landscape": Evaluation(
        "slope and curvature of the loss",
        lambda one, setup: [landscape(one.model, setup.split).to_json()],
        _landscape_rows,
    ),
    "cost": Evaluation(
        "time of each penalty and error of its σ (section 4.3)", _cost, _cost_rows, of_pixels=False
    ),
}
