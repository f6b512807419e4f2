"""jacnorm doctor"""

from __future__ import annotations

import argparse
import shutil
import sys
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
from ..errors import UsageError
from ..nets import NETS, build
from ..tokens import find_embedding
from .measure import add_data_and_net, data_and_model, load_weights

ANY = 1 << 30  # --tokens without a number
USUAL = {"mlp": (1, 28, 28), "lenet": (1, 28, 28), "vgg16": (3, 32, 32), "resnet18": (3, 32, 32)}


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "doctor",
        "Examine a network: its engine and rules, the cost of a penalty, and warnings.",
        "jacnorm doctor my_package.nets:resnet --input 3x32x32 --train\n"
        "  jacnorm doctor my_package.nets:bert --input 128 --tokens 30000 --at embeddings.word_embeddings",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a net's name, package.module:factory, or the folder of a run"
    )
    parser.add_argument("--input", type=_shape, metavar="SHAPE", help="the shape of one sample, as 3x32x32")
    parser.add_argument(
        "--at", metavar="LAYER", help="take J from the output of this layer on: an embedding, for tokens"
    )
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="?",
        const=ANY,
        metavar="N",
        help="samples are tokens, of --data or below N: --input 128 --tokens 30000",
    )
    add_data_and_net(parser, "a net")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="samples (default: %(default)s)")
    parser.add_argument("--train", action="store_true", help="in training mode")
    add_machine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns 0 if the model is supported, else 1."""
    device = use_machine(args)
    need_one_or_more(args, "batch", "tokens")
    model, x, at = _model_and_batch(args)
    model, x = model.to(device).train(args.train), x.to(device)
    width = max(80, min(shutil.get_terminal_size((100, 0)).columns, 120))
    found = examine(model, x, at)
    if found.served:
        bar = partial(tqdm, desc="measuring the cost", disable=None, leave=False, delay=1)
        found = replace(found, cost=step_cost(model, x, at, watch=bar))
    print(found.text(width))
    return 0 if found.served else 1


def _model_and_batch(args: argparse.Namespace) -> tuple[nn.Module, Tensor, str | None]:
    """The first samples of a run or of --data, else random numbers; and the layer where J begins."""
    is_run = args.model not in NETS and Path(args.model).is_dir()
    args.folder, args.net = (Path(args.model), None) if is_run else (None, args.model)
    if is_run or args.data is not None:
        if args.input is not None:
            raise UsageError("--input goes with a net alone; a run and --data have samples of their own")
        layer, args.at = args.at, args.at if args.tokens else None
        data, model = data_and_model(args)
        return model.body, model.normalize(data.test.images[: args.batch]), layer or model.at
    net, x = _net_and_noise(args)
    is_open = args.tokens and args.at is None
    return net, x, find_embedding(net.eval(), x, None) if is_open else args.at


def _net_and_noise(args: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    shape: tuple[int, ...] | None = args.input or USUAL.get(args.model)
    if shape is not None and len(shape) == 2 and args.model in NETS:
        shape = (1, *shape)
        print(f"{args.model} takes images with channels: {'×'.join(map(str, shape))}", file=sys.stderr)
    model = build(args.model, shape or (), classes=10, output=args.output)
    if args.weights is not None:
        load_weights(model, args.weights)
    shape = shape or getattr(model, "default_cfg", {}).get("input_size")  # timm's nets have it
    if shape is None:
        raise UsageError(f"say what one sample for {args.model} looks like: --input 3x224x224")
    if args.tokens == ANY:
        raise UsageError("say how many different tokens there are: --tokens 30000")
    if args.tokens is not None:
        return model, torch.randint(args.tokens, (args.batch, *shape), generator=_generator())
    return model, torch.randn(args.batch, *shape, generator=_generator())


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _shape(text: str) -> tuple[int, ...]:
    parts = text.lower().replace("×", "x").replace(",", "x").split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape: write 3x32x32")
    return tuple(map(int, parts))
