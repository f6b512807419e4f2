"""jacnorm doctor"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ...diagnosis.cost import step_cost
from ...diagnosis.examine import examine
from ..cli import add_command, add_machine_options, need_one_or_more, use_machine
from ..data import load
from ..errors import UsageError
from ..nets import NETS, build
from ..run_files import load_run, read_config

USUAL = {"mlp": (1, 28, 28), "lenet": (1, 28, 28), "vgg16": (3, 32, 32), "resnet18": (3, 32, 32)}


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "doctor",
        "Examine a network: which engine and rules serve it, what a penalty costs, what to beware of.",
        "jacnorm doctor my_package.nets:resnet --input 3x32x32 --train",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a net's name, package.module:factory, or the folder of a run"
    )
    parser.add_argument("--input", type=_shape, metavar="SHAPE", help="of one sample, as 3x32x32")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="samples (default: %(default)s)")
    parser.add_argument("--train", action="store_true", help="in training mode")
    add_machine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 if the model can be served, else 1."""
    device = use_machine(args)
    need_one_or_more(args, "batch")
    model, x = _model_and_batch(args)
    model, x = model.to(device).train(args.train), x.to(device)
    width = max(80, min(shutil.get_terminal_size((100, 0)).columns, 120))
    found = examine(model, x)
    if found.served:
        bar = partial(tqdm, desc="measuring the cost", disable=None, leave=False, delay=1)
        found = replace(found, cost=step_cost(model, x, watch=bar))
    print(found.text(width))
    return 0 if found.served else 1


def _model_and_batch(args: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """Random numbers for a net, the first images for a run."""
    if args.model not in NETS and Path(args.model).is_dir():
        return _run_and_images(args)
    shape = args.input or USUAL.get(args.model)
    channels, size = (shape[0], shape[-1]) if shape else (3, 32)
    if args.model in NETS and shape != (channels, size, size):
        raise UsageError(f"{args.model} takes square images: --input 3x32x32")
    model = build(args.model, channels, size, classes=10)
    shape = shape or getattr(model, "default_cfg", {}).get("input_size")  # timm's nets know it
    if shape is None:
        raise UsageError(f"say what one sample for {args.model} looks like: --input 3x224x224")
    return model, torch.randn(args.batch, *shape, generator=torch.Generator().manual_seed(0))


def _run_and_images(args: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    if args.input is not None:
        raise UsageError("--input goes with a net; a run has its own images")
    config = read_config(Path(args.model))
    data = load(config.data, args.data_root)
    model = load_run(Path(args.model), config, data)
    return model.body, model.normalize(data.test.images[: args.batch])


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().replace("×", "x").replace(",", "x").split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape: write 3x32x32")
    return tuple(map(int, parts))
