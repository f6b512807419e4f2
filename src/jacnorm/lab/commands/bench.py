"""jacnorm bench"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ..bench import suites
from ..bench.nets import NETS
from ..bench.networks import NETWORKS, Network, network
from ..bench.page import markdown, picture
from ..bench.starts import STEPS, starts
from ..bench.starts_page import picture_of_starts
from ..bench.targets import AIMS, Aim, targets
from ..bench.targets_page import picture_of_targets
from ..bench.zoo import PUPILS, Pupil
from ..checkpoint import write_atomically
from ..cli import add_command, add_data_root, need_one_or_more, prepare_folder
from ..errors import UsageError
from ..results import read_result
from ..run import environment

ALL = "all"
SUITES = ("methods", "training", "batch_sizes", "outputs", "depth", "measure", "starts", "targets")
PICTURES = (("cost-and-error", picture), ("starts", picture_of_starts), ("targets", picture_of_targets))


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "bench",
        "Measure the cost and the accuracy of penalties, and compare with other libraries.",
        "jacnorm bench methods --net lenet --batch 32\n  jacnorm bench methods --net all\n"
        "  jacnorm bench training --data kmnist --epochs 15\n"
        "  jacnorm bench starts --nets LeNet,GNN\n  jacnorm bench targets --data-root data",
    )
    parser.add_argument("suite", choices=SUITES, help="what to measure")
    parser.add_argument(
        "--net",
        choices=(*NETS, ALL),
        default="lenet",
        help="for methods (default: lenet); all: each net of the page with its batch, except those that this "
        "version has already measured",
    )
    parser.add_argument("--batch", type=int, default=32, help="for methods (default: 32)")
    parser.add_argument("--width", type=float, default=1.0, help="of vgg16 and resnet18 (default: 1)")
    parser.add_argument("--data", default="kmnist", help="for training (default: kmnist)")
    add_data_root(parser)
    parser.add_argument("--epochs", type=int, default=suites.EPOCHS, help="for training (default: 15)")
    parser.add_argument("--images", type=int, default=10_000, help="for measure (default: 10000)")
    parser.add_argument(
        "--nets",
        help=f"for starts, with commas: {', '.join(p.name for p in PUPILS)}; for targets, with semicolons: "
        f"{'; '.join(a.name for a in AIMS)} (default: all)",
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"of training, for starts (default: {STEPS})"
    )
    parser.add_argument("--out", type=Path, default=Path("bench"), help="folder (default: bench)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    need_one_or_more(args, "batch", "epochs", "images", "steps")
    pupils = _chosen(args.nets, ",", {pupil.name: pupil for pupil in PUPILS}, args.suite == "starts")
    aims = _chosen(args.nets, ";", {aim.name: aim for aim in AIMS}, args.suite == "targets")
    prepare_folder("--out", args.out)
    torch.set_num_threads(1)
    one_by_one: dict[str, Callable[[dict[str, Any]], Iterator[tuple[str, Any]]]] = {
        "methods": lambda found: _methods(args, found),
        "starts": lambda _: _starts(pupils, args.steps),
        "targets": lambda _: _targets(aims, args.data_root),
    }
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "training": lambda: suites.training(args.data, args.data_root, args.epochs),
        "batch_sizes": suites.batch_sizes,
        "outputs": suites.outputs,
        "depth": suites.depth,
        "measure": lambda: suites.measuring_speed(args.images),
    }
    file = args.out / "bench.json"
    found = read_result(file) if file.exists() else {}
    found["environment"] = environment(torch.device("cpu"))
    if args.suite in one_by_one:
        for name, result in one_by_one[args.suite](found):  # written one by one, since each takes minutes
            found[args.suite] = found.get(args.suite, {}) | {name: result}
            _write(args.out, found)
    else:
        found[args.suite] = runs[args.suite]()
        _write(args.out, found)
    print(markdown({args.suite: found[args.suite], "environment": found["environment"]}))
    print(f"The page: {args.out / 'index.md'}")


def _starts(pupils: list[Pupil], steps: int) -> Iterator[tuple[str, Any]]:
    for pupil in pupils:
        yield pupil.name, starts(pupil, steps)


def _targets(aims: list[Aim], data_root: Path | None) -> Iterator[tuple[str, Any]]:
    for aim in aims:
        yield aim.name, targets(aim, data_root)


def _methods(args: argparse.Namespace, found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Adds to the nets that this version has measured. Results of another version are dropped."""
    known = found["methods"] = {
        name: of for name, of in found.get("methods", {}).items() if of.get("jacnorm") == __version__
    }
    chosen: list[Network] = [network(args.net, args.batch)]
    if args.net == ALL:
        chosen = [n for n in NETWORKS if n.name not in known]
    for n in chosen:
        print(n.name, file=sys.stderr)
        yield n.name, suites.methods(n, args.width)


def _chosen(names: str | None, comma: str, known: dict[str, Any], is_asked: bool) -> list[Any]:
    """The named entries of a suite, or all."""
    if not is_asked:
        return []
    chosen = list(known) if names is None else [name.strip() for name in names.split(comma)]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise UsageError(f"--nets: there is no {unknown[0]!r}: choose from {f'{comma} '.join(known)}")
    return [known[name] for name in chosen]


def _write(folder: Path, found: dict[str, Any]) -> None:
    write_atomically(folder / "bench.json", (json.dumps(_rounded(found), indent=1) + "\n").encode())
    write_atomically(folder / "index.md", markdown(found).encode())
    for name, draw in PICTURES:
        figure = draw(found)
        if figure is not None:
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
