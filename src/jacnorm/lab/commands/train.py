"""jacnorm train"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import torch

from ..config import RunConfig, choices, field_names, make_config, number, read_toml
from ..data import load
from ..errors import UsageError
from ..progress import Progress
from ..run import check_start
from ..run_files import finished_epochs, locked, read_config, tidy
from ..share import Share, processes
from ..train import train
from ..wording import count
from .common import add_command, add_machine_options, need, use_machine

HELP = {
    "data": "digits, kmnist, fashion-mnist, mnist or cifar10",
    "net": "mlp, lenet, vgg16, resnet18, or your own package.module:factory (called without arguments)",
    "width": "scales the channels of vgg16 and resnet18",
    "method": "the regularizer; adversarial trains on images that PGD has changed",
    "weight": "its weight, λ (not none, not adversarial)",
    "learning_rate": "of SGD",
    "momentum": "of SGD",
    "batch_size": "images a step",
    "epochs": "passes over the train split",
    "schedule": "of the learning rate: constant, or down to 0 in half a cosine",
    "augment": "random crop and horizontal flip",
    "protocol": "validate on the test split, as the paper does, or on a sixth of train that is held out",
    "seed": "of the weights, the order of the images and all else that is random",
    "iterations": "rounds of power iteration (spectral, spectral-bound)",
    "projections": "random projections (frobenius)",
    "convolution": "norm of a convolution itself, or of its kernel as a matrix (spectral-bound)",
    "warm_start": "go on from each sample's last vector; the paper starts at random (spectral)",
    "h": "the shape of the penalty (spectral)",
    "threshold": "of h = hinge",
    "batch_norm": "whether the penalty's gradient passes through the batch's variance",
    "every": "pay the penalty at every k-th step only, k times as much (not l2)",
    "fraction": "of each batch that pays the penalty (spectral, frobenius, analytic, margin)",
    "epsilon": "how far the attack may change a pixel, from 0 to 1, as 8/255 (adversarial)",
    "attack_steps": "gradient steps of the attack on each batch (adversarial)",
    "radius": "how far from the boundary is far enough, of normalized input (margin)",
    "radius_norm": "the norm that this radius is measured in (margin)",
    "candidates": "classes with the highest scores that may be the nearest (margin)",
}


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        "Train a network with a regularizer.",
        "jacnorm train --data kmnist --net lenet --method spectral --weight 0.1 --epochs 35",
    )
    parser.add_argument("--config", type=Path, help="a TOML file with any of the settings below")
    parser.add_argument("--out", type=Path, help="the run's folder (default: runs/ID)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--tensorboard", type=Path, metavar="FOLDER", help="write metrics for TensorBoard")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_machine_options(parser)
    add_settings(parser)
    parser.set_defaults(run=run)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """--key value for every field of a config; absent means what the file or the default says."""
    group = parser.add_argument_group("settings")
    types, defaults = get_type_hints(RunConfig), RunConfig()
    for name in field_names():
        option = "--" + name.replace("_", "-")
        text = f"{HELP[name]} (default: {getattr(defaults, name)})"
        if types[name] is bool:
            action = argparse.BooleanOptionalAction
            group.add_argument(option, action=action, default=argparse.SUPPRESS, help=text)
        else:
            kind = number if types[name] is float else types[name]
            group.add_argument(option, type=kind, choices=choices(name), default=argparse.SUPPRESS, help=text)


def run(args: argparse.Namespace) -> None:
    config = make_config(_settings(args))
    device = use_machine(args)
    folder = args.out or Path("runs") / config.id
    with processes(device) as share:
        result = _train(args, config, device, folder, share)
    if not share.first:
        return
    if args.json:
        print(json.dumps(result))
        return
    test = result["test"]
    print(
        f"{config.label} on {config.data}: test accuracy {test['accuracy']:.2%}, loss {test['loss']:.4f}, "
        f"mean σ {test['sigma']:.3f} (normalized input, first {test['sigma_images']} images)\n"
        f"in {folder}; look closer with: jacnorm measure {folder}"
    )


def _train(
    args: argparse.Namespace, config: RunConfig, device: torch.device, folder: Path, share: Share
) -> dict[str, Any]:
    listeners = (tensorboard(args.tensorboard / config.id),) if args.tensorboard and share.first else ()
    progress = Progress(quiet=args.quiet or not share.first, listeners=listeners)
    with share.first_goes_ahead():  # it may have to download
        data = load(config.data, args.data_root)
    check_start(config, data)  # a mistake must leave no folder behind
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
    """The folder's own when going on with a run, else the file's; what is typed comes on top."""
    settings: dict[str, Any] = {}
    if args.resume and args.out and (args.out / "config.json").exists():
        settings = asdict(read_config(args.out))
    if args.config:
        settings |= read_toml(args.config)
    return settings | {name: getattr(args, name) for name in field_names() if hasattr(args, name)}


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
