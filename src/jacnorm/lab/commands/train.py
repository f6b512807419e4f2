"""jacnorm train"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ..cli import add_command, add_machine_options, need, use_machine
from ..config import KINDS, RunConfig, choices, field_names, help_text, make_config, read_toml
from ..data import DataSet
from ..errors import UsageError
from ..progress import Progress
from ..run import Share, processes, task_of
from ..run_files import finished_epochs, located, locked, read_settings, tidy
from ..settings import Settings, method_named, read_as
from ..train import train
from ..wording import count

RUNS = Path("runs")
SHORT = {"label_column": "--label"}


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        "Train a network with a regularizer.",
        "jacnorm train --data kmnist --net lenet --method spectral --weight 0.1 --epochs 35",
    )
    parser.add_argument("--config", type=Path, help="a TOML file with any of the settings below")
    parser.add_argument("--out", type=Path, help="the run's folder (default: runs/ID)")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint")
    parser.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="write metrics for TensorBoard")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_machine_options(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add an option --key value for each setting. Without the option, the file or the default decides."""
    told: set[str] = set()
    for task, kind in KINDS.items():
        group = parser.add_argument_group(f"settings of {task}")
        for one in fields(kind):
            if one.name not in told:
                group.add_argument(
                    SHORT.get(one.name, f"--{one.name.replace('_', '-')}"),
                    dest=one.name,
                    default=argparse.SUPPRESS,
                    help=_help(one.name),
                    **_how(one.name, type(one.default)),
                )
        told |= set(field_names(kind))


def _how(name: str, kind: type) -> dict[str, Any]:
    """The type and the choices of a setting, from all tasks that have it."""
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    found = [choices(name, of) for of in KINDS.values() if name in field_names(of)]
    some = None if None in found else tuple(dict.fromkeys(one for of in found for one in of or ()))
    return {"type": method_named if name == "method" else read_as(kind), "choices": some}


def _help(name: str) -> str:
    """The help text of the first task with this setting, and other tasks' defaults if they differ."""
    kinds = {task: kind for task, kind in KINDS.items() if name in field_names(kind)}
    defaults = {task: kind.__dataclass_fields__[name].default for task, kind in kinds.items()}
    first, *others = defaults
    differing = "".join(f"; {task}: {defaults[task]}" for task in others if defaults[task] != defaults[first])
    text = f"{help_text(name, kinds[first])} (default: {defaults[first]}{differing})"
    return text.replace("%", "%%")


def run(args: argparse.Namespace) -> None:
    config = make_config(_settings(args))
    device = use_machine(args)
    with processes(device) as share:
        task_of(config).check_names(located(config, args.out))
        config, data = _data(args, config, share)
        folder = args.out or RUNS / config.id
        result = _train(args, config, data, device, folder, share)
    if not share.first:
        return
    if args.json:
        print(json.dumps(result))
        return
    print(f"{task_of(config).told(config, result)}\nin {folder}{next_step(config, folder)}")


def next_step(config: Settings, folder: Path) -> str:
    return f"; look closer with: jacnorm measure {folder}" if isinstance(config, RunConfig) else ""


def _data(args: argparse.Namespace, config: Settings, share: Share) -> tuple[Settings, Any]:
    """The settings with the fingerprint of the data, and the data. A user's own data is described."""
    with share.first_goes_ahead():  # a download may be needed
        runs = RUNS if args.out is None else args.out.parent
        data = task_of(config).load(located(config, args.out), args.data_root, runs)
    if isinstance(data, DataSet) and data.own and share.first and not args.quiet:
        print(data.told(), file=sys.stderr)
    return config.with_data(data), data


def _train(
    args: argparse.Namespace, config: Settings, data: Any, device: torch.device, folder: Path, share: Share
) -> dict[str, Any]:
    listeners = (tensorboard(args.tensorboard / config.id),) if args.tensorboard and share.first else ()
    progress = Progress(quiet=args.quiet or not share.first, listeners=listeners)
    task_of(config).check_start(config, data)  # before the folder is made, so that a mistake leaves none
    try:
        with locked(folder) if share.first else nullcontext(True) as mine:
            if not mine:
                raise UsageError(f"{folder} is being trained by another process: name another with --out")
            if share.first:
                tidy(folder)
            options = {"device": device, "resume": args.resume, "progress": progress, "share": share}
            return train(config, data, folder, **options)
    except KeyboardInterrupt:
        kept = count(finished_epochs(folder), "finished epoch")
        print(f"\nkept: {kept}; go on with: jacnorm train --out {folder} --resume")
        raise


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of --config, or of the run to continue. Options on the command line override both."""
    settings: dict[str, Any] = {}
    if args.resume and args.out and (args.out / "config.json").exists():
        settings = read_settings(args.out).stored()
    if args.config:
        settings |= read_toml(args.config)
    known = {name for kind in KINDS.values() for name in field_names(kind)}
    return settings | {name: value for name, value in vars(args).items() if name in known}


def tensorboard(folder: Path) -> Callable[[dict[str, Any]], None]:
    need("tensorboard", "--tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def listen(metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if name != "epoch":
                writer.add_scalar(name, value, metrics["epoch"])
        writer.flush()

    return listen
