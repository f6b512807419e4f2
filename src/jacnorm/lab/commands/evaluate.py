"""jacnorm evaluate"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..checkpoint import write_json
from ..config import RunConfig
from ..data import DataSet, Split, load
from ..errors import UsageError
from ..evaluate.adversarial import ATTACKS, EPSILON, adversarial
from ..evaluate.boundary import DIRECTIONS, boundary
from ..evaluate.calibration import calibration
from ..evaluate.compare import comparison
from ..evaluate.judge import judge
from ..evaluate.landscape import landscape
from ..evaluate.minimum_norm import need_foolbox
from ..evaluate.noise import white_noise
from ..evaluate.record import alarms, rows, shown
from ..evaluate.stored import cost, stored_vectors
from ..machine import environment
from ..nets import Normalized, weights_digest
from ..results import read_result
from ..run_files import divergence, load_run, read_config
from ..tables import table
from ..train import score
from .common import (
    add_command,
    add_machine_options,
    need,
    need_one_or_more,
    prepare_folder,
    use_machine,
)

KINDS = {
    "noise": "accuracy with white noise (section 4.2.1)",
    "judge": "robust accuracy against four strong attacks, the worst for each image",
    "boundary": "distance to the decision boundary (section 4.2.3)",
    "calibration": "whether the network is as sure as it is right",
    "landscape": "slope and curvature of the loss",
    "cost": "time of each penalty and error of its σ (section 4.3)",
}


@dataclass(frozen=True)
class Trained:
    """A finished run, in memory."""

    folder: Path
    config: RunConfig
    model: Normalized


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "evaluate",
        "Evaluate trained networks on the test split. Several runs are compared, seeds averaged.",
        "jacnorm evaluate runs/digits-mlp-spectral-0.01-s0-0123456789\n"
        "  jacnorm evaluate runs/kmnist-* --noise --attacks pgd,square --images 1000 --out robustness",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN", help="the folder of a finished run")
    parser.add_argument("--all", action="store_true", help="everything below")
    for name, text in KINDS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--attacks", type=_attack_names, metavar="LIST", help="any of pgd,tpgd,square (section 4.2.2)"
    )
    parser.add_argument(
        "--epsilon",
        type=_radius,
        metavar="E",
        help="of --attacks and --judge, in pixels from 0 to 1: 8/255 or 0.03 (default: the paper's 32/255). "
        "PGD and TPGD take 40 steps of 2/255, so that more than 80/255 is out of their reach",
    )
    parser.add_argument(
        "--directions", type=int, default=DIRECTIONS, help="rays of --boundary (default: %(default)s)"
    )
    parser.add_argument("--images", type=int, metavar="N", help="only the first N images")
    parser.add_argument(
        "--out", type=Path, help="where numbers and figures go (default: evaluation, in the one RUN or here)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON, a line a run")
    add_machine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    device = use_machine(args)
    _check(args)
    data, trained = _load(args, device)
    split = Split(data.test.images[: args.images], data.test.labels[: args.images]).to(device)
    out = args.out or (args.folders[0] if len(args.folders) == 1 else Path()) / "evaluation"
    writes = bool(_chosen(args) or args.attacks)
    if writes:
        prepare_folder("--out", out)
    records = []
    for one in trained:
        file = out / f"{one.config.id}.json"
        for record in _evaluated(args, one, trained, data, split):
            if writes:  # as soon as it is there, with what was evaluated before on the same images
                record = _stored(file, record, _ids(trained), args.attacks or [])
        records.append(record)
        print(json.dumps(record) if args.json else _report(record, alone=len(trained) == 1), flush=True)
    if len(trained) > 1 and not args.json:
        print(f"\n{comparison(records)}\n")
    if writes:
        from ..figures import draw  # here, so that other commands do not wait for matplotlib

        outdated = draw(records, out)
        if not args.json:
            print(f"numbers and figures: {out}")
        if outdated:
            print(
                f"of an earlier evaluation, not of all these runs: {', '.join(outdated)}",
                file=sys.stderr,
            )


def _attack_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in ATTACKS]:
        raise argparse.ArgumentTypeError(
            f"there is no attack {unknown[0]!r}: choose from {','.join(ATTACKS)}"
        )
    return names


def _radius(text: str) -> float:
    """
    >>> _radius("8/255") == 8 / 255, _radius("0.03"), _radius("1e-2")
    (True, 0.03, 0.01)
    """
    try:
        numerator, slash, denominator = text.partition("/")
        found = float(numerator) / (float(denominator) if slash else 1)
    except (ValueError, ZeroDivisionError):
        found = -1.0
    if not 0 < found <= 1 or text.startswith("-"):
        raise argparse.ArgumentTypeError(f"{text!r}: a number above 0 and up to 1 is needed, like 8/255")
    return found


def _check(args: argparse.Namespace) -> None:
    need_one_or_more(args, "images", "directions")
    if args.all:
        args.attacks = list(ATTACKS)
    if args.epsilon is not None and not (args.attacks or "judge" in _chosen(args)):
        raise UsageError("--epsilon is the strength of --attacks and --judge: ask for one of them, too")
    args.epsilon = args.epsilon or EPSILON
    if _chosen(args) or args.attacks:
        need("matplotlib", "a figure of the evaluation")
    if {"judge", "boundary"} & set(_chosen(args)):
        need_foolbox()


def _chosen(args: argparse.Namespace) -> list[str]:
    return [name for name in KINDS if args.all or getattr(args, name)]


def _load(args: argparse.Namespace, device: torch.device) -> tuple[DataSet, list[Trained]]:
    args.folders = _left_in(args.folders)
    configs = [read_config(folder) for folder in args.folders]
    names = sorted({config.data for config in configs})
    if len(names) > 1:
        raise UsageError(
            f"these runs are on different data sets, {', '.join(names)}: evaluate them one by one"
        )
    ids = [config.id for config in configs]
    if twice := [str(f) for f, i in zip(args.folders, ids, strict=True) if ids.count(i) > 1]:
        raise UsageError(f"the same run is named more than once: {', '.join(twice)}")
    data = load(names[0], args.data_root)
    return data, [
        Trained(folder, config, load_run(folder, config, data).to(device))
        for folder, config in zip(args.folders, configs, strict=True)
    ]


def _left_in(folders: list[Path]) -> list[Path]:
    """Of many, those that have a network; a single one is told what is wrong with it."""
    gone = [folder for folder in folders if divergence(folder)]
    if len(folders) == len(gone):
        return folders
    for folder in gone:
        print(f"{folder}: left out, it diverged", file=sys.stderr)
    return [folder for folder in folders if folder not in gone]


def _evaluated(
    args: argparse.Namespace, one: Trained, trained: list[Trained], data: DataSet, split: Split
) -> Iterator[dict[str, Any]]:
    """The numbers of one run, with where they come from; again after each kind, with that added.

    (Not before the first: nothing is worth less than what an earlier evaluation has left.)
    """
    model, config = one.model, one.config
    record: dict[str, Any] = {"id": config.id, "config": config.relevant(), "images": len(split)}
    record |= {"weights": weights_digest(model), "test": score(model, split)}
    record |= {"alarms": [], "environment": environment(split.images.device)}
    if not (args.attacks or _chosen(args)):
        yield record
    for name in args.attacks or ():
        found = adversarial(model, split, name, epsilons=(args.epsilon,)).to_json()
        record = record | {"attacks": record.get("attacks", {}) | {name: found}}
        yield record | {"alarms": alarms(record)}
    make = {
        "noise": lambda: white_noise(model, split).to_json(),
        "judge": lambda: judge(model, split, epsilon=args.epsilon).to_json(),
        "boundary": lambda: boundary(
            model, split, compared_with=[other.model for other in trained], directions=args.directions
        ).to_json(),
        "calibration": lambda: calibration(model, split).to_json(),
        "landscape": lambda: landscape(model, split).to_json(),
        "cost": lambda: cost(config, model, data, args.images, vectors=stored_vectors(one.folder, config)),
    }
    for name in _chosen(args):
        record = record | {name: make[name]()}
        if name == "boundary":  # its points are those that all of these classify correctly
            record[name]["compared_with"] = _ids(trained)
        yield record | {"alarms": alarms(record)}


def _report(record: dict[str, Any], alone: bool) -> str:
    """All of a run; of several, a line until they are compared."""
    told = [f"{record['id']}, {record['images']} test images"]
    if alone:
        told.append(table([(name, shown(value, form)) for name, value, form in rows(record)]) + "\n")
    return "\n".join([*told, *(f"ALARM: {alarm}" for alarm in record["alarms"])])


def _ids(trained: list[Trained]) -> list[str]:
    return sorted(one.config.id for one in trained)


def _is_as_strong(attack: dict[str, Any], others: dict[str, Any]) -> bool:
    """Attacks of two strengths are not to be compared."""
    return all(list(attack["epsilons"]) == list(other["epsilons"]) for other in others.values())


def _stored(file: Path, record: dict[str, Any], together: list[str], asked: Sequence[str]) -> dict[str, Any]:
    """Written to its file, on top of what that holds of the same weights and images.

    Attacks of another strength give way. Distances stay there, and are not told beside networks that they
    were not compared with.
    """
    before = read_result(file) if file.exists() else {}
    if all(before.get(key) == record[key] for key in ("id", "config", "images", "weights")):
        now = record.get("attacks", {})
        earlier = before.get("attacks", {})
        weaker_or_stronger = [name for name, attack in earlier.items() if not _is_as_strong(attack, now)]
        if gone := [name for name in weaker_or_stronger if name not in asked]:
            print(f"{file}: {', '.join(gone)} of another strength dropped", file=sys.stderr)
        attacks = {name: a for name, a in earlier.items() if name not in weaker_or_stronger} | now
        record = before | record | ({"attacks": attacks} if attacks else {})
        record["alarms"] = alarms(record)
    write_json(file, record)
    other_points = record.get("boundary", {}).get("compared_with") != together
    return {key: value for key, value in record.items() if key != "boundary" or not other_points}
