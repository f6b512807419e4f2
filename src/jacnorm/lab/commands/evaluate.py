"""jacnorm evaluate"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..classification import score
from ..cli import add_command, add_machine_options, need, need_one_or_more, prepare_folder, use_machine
from ..config import RunConfig
from ..data import DataSet, Split
from ..errors import UsageError
from ..evaluate.adversarial import ATTACKS, EPSILON
from ..evaluate.boundary import DIRECTIONS
from ..evaluate.compare import comparison
from ..evaluate.kinds import EVALUATIONS, Setup, Trained, rows, shown
from ..evaluate.minimum_norm import need_foolbox
from ..evaluate.record import added_to, alarms
from ..nets import weights_digest
from ..run import environment
from ..run_files import check_finished, divergence, load_run, read_config
from ..settings import number
from ..wording import table
from .measure import add_data, add_net, add_tokens, data_and_model, load_data


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "evaluate",
        "Evaluate trained networks on the test split. Several runs are compared, with means over seeds.",
        "jacnorm evaluate runs/digits-mlp-spectral-0.01-s0-0123456789\n"
        "  jacnorm evaluate runs/kmnist-* --noise --attacks pgd,square --images 1000 --out robustness\n"
        "  jacnorm evaluate --net my_package.nets:resnet --weights resnet.safetensors --data photos --noise",
    )
    parser.add_argument("folders", type=Path, nargs="*", metavar="RUN", help="the folder of a finished run")
    parser.add_argument("--net", help="instead of runs: a net's name, or package.module:factory; with --data")
    add_data(parser)
    add_tokens(parser)
    add_net(parser, "--net")
    parser.add_argument("--all", action="store_true", help="everything below")
    for name, evaluation in EVALUATIONS.items():
        how: dict[str, Any] = {"action": "store_true"}
        if name == "attacks":
            how = {"type": _attack_names, "metavar": "LIST"}
        parser.add_argument(f"--{name}", help=evaluation.text, **how)
    parser.add_argument(
        "--epsilon",
        type=radius,
        metavar="E",
        help="of --attacks and --judge, in pixels from 0 to 1: 8/255 or 0.03 (default: the paper's 32/255). "
        "PGD and TPGD take 40 steps of 2/255, so they cannot reach more than 80/255",
    )
    parser.add_argument("--change", action="store_true", help="also draw figures of the drop in accuracy")
    parser.add_argument(
        "--directions", type=int, default=DIRECTIONS, help="rays of --boundary (default: %(default)s)"
    )
    parser.add_argument("--images", type=int, metavar="N", help="only the first N images")
    parser.add_argument(
        "--out", type=Path, help="where numbers and figures go (default: evaluation, in the one RUN or here)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON, one line per run")
    add_machine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    device = use_machine(args)
    if not args.folders and args.net is None:
        raise UsageError("name the folders of runs, or --net")
    args.folder = None
    chosen = _chosen(args)
    data, trained = _load(args, device)
    if of_pixels := [name for name in chosen if EVALUATIONS[name].of_pixels and not data.is_pixels]:
        raise UsageError(f"--{of_pixels[0]} is for images with pixels from 0 to 1, and {data.name} has none")
    if data.are_tokens and "cost" in chosen:
        raise UsageError(f"--cost is for images and tables; {data.name} has tokens")
    split = Split(data.test.images[: args.images], data.test.labels[: args.images]).to(device)
    how: dict[str, Any] = {
        "attacks": args.attacks or (),
        "epsilon": args.epsilon or EPSILON,
        "directions": args.directions,
    }
    setup = Setup(data, split, trained, args.images, **how)
    out = args.out or (args.folders[0] if len(args.folders) == 1 else Path()) / "evaluation"
    if chosen:
        prepare_folder("--out", out)
    together = sorted(one.config.id for one in trained)
    records = []
    for one in trained:
        for record in _evaluated(one, setup, chosen):
            if chosen:  # written at once, together with earlier evaluations on the same images
                record = added_to(out / f"{one.config.id}.json", record, together, setup.attacks)
        records.append(record)
        print(json.dumps(record) if args.json else _report(record, alone=len(trained) == 1), flush=True)
    if len(trained) > 1 and not args.json:
        print(f"\n{comparison(records)}\n")
    if chosen:
        _draw(records, out, change=args.change, quiet=args.json)


def _draw(records: list[dict[str, Any]], out: Path, *, change: bool, quiet: bool) -> None:
    from ..figures.draw import draw  # here, since importing matplotlib is slow

    outdated = draw(records, out, change=change)
    if not quiet:
        print(f"numbers and figures: {out}")
    if outdated:
        told = f"of an earlier evaluation, not of all these runs: {', '.join(outdated)}"
        print(told, file=sys.stderr)


def _attack_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in ATTACKS]:
        raise argparse.ArgumentTypeError(
            f"there is no attack {unknown[0]!r}: choose from {','.join(ATTACKS)}"
        )
    return names


def radius(text: str) -> float:
    """
    >>> radius("8/255") == 8 / 255, radius("0.03"), radius("1e-2")
    (True, 0.03, 0.01)
    """
    try:
        found = -1.0 if text.startswith("-") else number(text)
    except (ValueError, ZeroDivisionError):
        found = -1.0
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a number above 0 and up to 1 is needed, like 8/255")
    return found


def _chosen(args: argparse.Namespace) -> list[str]:
    """The evaluations that were asked for. An error if one is not possible."""
    need_one_or_more(args, "images", "directions")
    if args.all:
        args.attacks = list(ATTACKS)
    chosen = [name for name in EVALUATIONS if args.all or getattr(args, name)]
    if args.net is not None and "cost" in chosen:
        if args.cost:
            raise UsageError("--cost is about the training of a run: leave it out for --net")
        chosen.remove("cost")
    if args.epsilon is not None and not {"attacks", "judge"} & set(chosen):
        raise UsageError("--epsilon is the strength of --attacks and --judge: ask for one of them as well")
    if chosen:
        need("matplotlib", "a figure of the evaluation")
    if any(EVALUATIONS[name].uses_foolbox for name in chosen):
        need_foolbox()
    return chosen


def _load(args: argparse.Namespace, device: torch.device) -> tuple[DataSet, list[Trained]]:
    if args.net is not None:
        return _own_net(args, device)
    if any((args.weights, args.takes, args.data, args.label, args.output, args.tokens, args.at)):
        raise UsageError(
            "--weights, --takes, --data, --label, --output, --tokens and --at go with --net; "
            "a run has its own"
        )
    args.folders = left_in(args.folders)
    configs = [read_config(folder) for folder in args.folders]
    names = sorted({" ".join([config.data, config.data_fingerprint]).strip() for config in configs})
    if len(names) > 1:
        raise UsageError(
            f"these runs are on different data sets, {', '.join(names)}: evaluate them one by one"
        )
    ids = [config.id for config in configs]
    if twice := [str(f) for f, i in zip(args.folders, ids, strict=True) if ids.count(i) > 1]:
        raise UsageError(f"the same run is named more than once: {', '.join(twice)}")
    data = load_data(args, configs[0], args.folders[0])
    return data, [
        Trained(folder, config, load_run(folder, config, data).to(device))
        for folder, config in zip(args.folders, configs, strict=True)
    ]


def _own_net(args: argparse.Namespace, device: torch.device) -> tuple[DataSet, list[Trained]]:
    """A network of the user. Nothing is known about its training."""
    if args.folders:
        raise UsageError("name either folders of runs or --net, and not both")
    data, model = data_and_model(args)
    how = {"label_column": args.label or "", "tokens": args.tokens, "at": args.at or ""}
    config = RunConfig(data=args.data, net=args.net, output=args.output, method="none", **how)
    config = config.with_data(data)
    return data, [Trained(Path(), config, model.to(device))]


def left_in(folders: list[Path]) -> list[Path]:
    """The folders that have a network. If no folder has one, an error says what is wrong with the first."""
    without = {folder: why for folder in folders if (why := _without_network(folder))}
    if len(folders) == 1 or len(without) == len(folders):
        for folder in folders:
            check_finished(folder)
    for folder, why in without.items():
        print(f"{folder}: left out, {why}", file=sys.stderr)
    return [folder for folder in folders if folder not in without]


def _without_network(folder: Path) -> str | None:
    """The reason why a folder has no network. None if it has one, or if there is no such folder."""
    if not folder.exists():
        return None
    if divergence(folder):  # it reads result.json, and raises an error if the file is damaged
        return "it diverged"
    if (folder / "weights.safetensors").exists():
        return None
    return "it is not finished" if (folder / "config.json").exists() else "it is not a run"


def _evaluated(one: Trained, setup: Setup, chosen: list[str]) -> Iterator[dict[str, Any]]:
    """The record of one run, yielded again after each evaluation.

    Nothing is yielded before the first evaluation, since the file may have earlier evaluations.
    """
    record: dict[str, Any] = {"id": one.config.id, "config": one.config.relevant()}
    record |= {"images": len(setup.split), "weights": weights_digest(one.model)}
    record |= {"test": score(one.model, setup.split), "alarms": []}
    record |= {"environment": environment(setup.split.images.device)}
    if not chosen:
        yield record
    for name in chosen:
        for found in EVALUATIONS[name].run(one, setup):
            record = record | {name: found}
            yield record | {"alarms": alarms(record)}


def _report(record: dict[str, Any], alone: bool) -> str:
    """The text about one record.

    A single run gets a table. Several runs get one line each, since they are compared later.
    """
    told = [f"{record['id']}, {record['images']} test images"]
    if alone:
        told.append(table([(name, shown(value, form)) for name, value, form in rows(record)]) + "\n")
    return "\n".join([*told, *(f"ALARM: {alarm}" for alarm in record["alarms"])])
