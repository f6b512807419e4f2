"""jacnorm card"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from ..cli import add_command, add_machine_options, need, need_one_or_more, use_machine
from ..errors import UsageError
from ..nets import NETS
from ..run_files import read_config
from .evaluate import left_in, radius
from .measure import add_data_and_net, add_tokens, data_and_model

SAMPLES, ATTACKED = 2000, 200


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "card",
        "Make a card: one HTML file that shows how sensitive a network is.",
        "jacnorm card runs/my-run --out card.html\n"
        "  jacnorm card runs/digits-*\n"
        "  jacnorm card my_package.nets:resnet --weights resnet.safetensors --data cifar10\n"
        "  jacnorm card my_nets:reader --weights reader.pt --data texts.npz --tokens --names vocab.txt",
    )
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="the folder of a finished run, or several; or a net's name, or package.module:factory",
    )
    add_data_and_net(parser, "a net")
    add_tokens(parser)
    parser.add_argument(
        "--names", type=Path, metavar="FILE", help="a name per line: of all tokens, or of a table's columns"
    )
    parser.add_argument(
        "--images", type=int, default=SAMPLES, metavar="N", help="the first N samples (default: %(default)s)"
    )
    parser.add_argument(
        "--attacked",
        type=int,
        default=ATTACKED,
        metavar="N",
        help="how many of these samples to attack; this takes longest (default: %(default)s)",
    )
    parser.add_argument(
        "--epsilon", type=radius, metavar="E", help="of the attack, in pixels from 0 to 1 (default: 8/255)"
    )
    parser.add_argument("--title", help="(default: what the run or the net is called)")
    parser.add_argument(
        "--out", type=Path, help="(default: card.html here; of several runs, card.html in each run's folder)"
    )
    add_machine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    device = use_machine(args)
    for package in ("jinja2", "matplotlib", "foolbox"):
        need(package, "a card", "jacnorm[lab]")
    need_one_or_more(args, "images", "attacked")
    for folder, net, out in _each(args):
        args.folder, args.net = folder, net
        _make(args, out, device)


def _each(args: argparse.Namespace) -> list[tuple[Path | None, str | None, Path]]:
    """The folder of a run or the name of a net, and the file of its card."""
    if len(args.models) == 1:
        (name,) = args.models
        out = args.out or Path("card.html")
        return [(Path(name), None, out) if _is_folder(name) else (None, name, out)]
    if args.out is not None:
        raise UsageError(
            f"--out {args.out} is one file, and {len(args.models)} models are named: leave --out out, and "
            "each run gets its card.html in its folder"
        )
    if nets := [name for name in args.models if not _is_folder(name)]:
        raise UsageError(f"{nets[0]} is not the folder of a run; name one net at a time")
    folders = left_in([Path(name) for name in args.models])
    return [(folder, None, folder / "card.html") for folder in folders]


def _is_folder(name: str) -> bool:
    return name not in NETS and Path(name).is_dir()


def _make(args: argparse.Namespace, out: Path, device: torch.device) -> None:
    from ..card import make_card  # here, since importing matplotlib is slow

    data, model = data_and_model(args)
    shown = model.body if data.are_tokens else model
    split = getattr(data, args.split)
    images, labels = split.images[: args.images].to(device), split.labels[: args.images].to(device)
    made = make_card(
        shown.to(device),
        images,
        labels,
        out,
        title=args.title or _title(args, data.name),
        data=f"{data.name}, {args.split} split",
        classes=data.classes,
        names=_names(args.names) or data.columns or None,
        at=model.at,
        epsilon=args.epsilon,
        attacked=args.attacked,
        rerun=shlex.join(["jacnorm", *sys.argv[1:]]),
        scale=(data.mean, data.std),
    )
    print(f"card: {made}")


def _names(file: Path | None) -> list[str]:
    """The lines of a file. A token may be a space or empty, so nothing is stripped."""
    if file is None:
        return []
    try:
        return file.read_text().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--names {file}: cannot be read ({error})") from error


def _title(args: argparse.Namespace, data: str) -> str:
    if args.folder is None:
        return f"{args.net} on {data}"
    config = read_config(args.folder)
    how = (
        "without a regularizer" if config.method == "none" else f"with {config.label}, λ = {config.weight:g}"
    )
    return f"{config.net} on {data}, trained {how}"
