"""jacnorm measure"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import classification
from ..checkpoint import load as load_safetensors
from ..cli import add_command, add_machine_options, need, need_one_or_more, prepare_folder, use_machine
from ..config import RunConfig
from ..data import DataSet, load
from ..data.own import KINDS
from ..errors import UsageError
from ..nets import Normalized, build, check_fits, normalized
from ..run import environment
from ..run_files import check_finished, load_run, located, read_config
from ..sensitivity import directions, sensitivities, summary
from ..wording import table

PICTURED = 6  # images
UNITS = {"normalized": "the normalized input", "pixels": "pixels in [0, 1]"}
OF_ROWS = "the features, in standard deviations of each over the train split"
OF_TOKENS = "the embedding of each token"


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "measure",
        "Measure how sensitive a network is, sample by sample.",
        "jacnorm measure runs/my-run --picture sensitivity.png\n"
        "  jacnorm measure --net my_package.nets:resnet --weights resnet.safetensors --data cifar10",
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="RUN", help="the folder of a finished run")
    parser.add_argument("--net", help="instead of a run: a net's name, or package.module:factory")
    add_data_and_net(parser, "--net")
    add_tokens(parser)
    parser.add_argument("--units", choices=tuple(UNITS), default="normalized", help="σ with respect to what")
    parser.add_argument("--images", type=int, metavar="N", help="only the first N samples")
    parser.add_argument("--top", type=int, default=10, help="how many of the most sensitive samples to list")
    parser.add_argument("--picture", type=Path, help="write a picture, .png or .svg")
    parser.add_argument(
        "--vectors",
        type=int,
        metavar="K",
        help="in the picture, the K directions that each image is most sensitive to (default: 1)",
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    add_machine_options(parser)
    parser.set_defaults(run=run)


def add_data_and_net(parser: argparse.ArgumentParser, net: str) -> None:
    """Add the options that `data_and_model` uses, apart from `folder`, `net` and the options of tokens."""
    add_net(parser, net)
    add_data(parser)
    parser.add_argument("--split", choices=("test", "train"), default="test")


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help=f"the data set (default: a run's own): a name, {KINDS}")
    parser.add_argument("--label", metavar="COLUMN", help="for a table: the column that has the classes")


def add_tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", action="store_true", help="x in --data has tokens, (N, length)")
    parser.add_argument(
        "--at", metavar="EMBEDDING", help="as --tokens, and J begins at this embedding (default: found)"
    )


def add_net(parser: argparse.ArgumentParser, net: str) -> None:
    parser.add_argument(
        "--weights", type=Path, help=f"weights for {net}: .safetensors, or a state_dict in .pt"
    )
    parser.add_argument(
        "--takes",
        choices=tuple(UNITS),
        help=f"what {net} was trained on: images with mean 0 and standard deviation 1 (default), or pixels",
    )
    parser.add_argument(
        "--output", default="", help=f"name or position of the logits in the output of {net} (default: found)"
    )


def run(args: argparse.Namespace) -> None:
    device = use_machine(args)
    if args.picture:
        need("matplotlib", "--picture")
        prepare_folder("--picture", args.picture.parent)
    elif args.vectors is not None:
        raise UsageError("--vectors needs --picture: name the file to draw them in")
    need_one_or_more(args, "images", "top", "vectors")
    data, model = data_and_model(args)
    if args.picture and data.train.images.dim() != 4:
        raise UsageError(f"--picture shows images; {data.name} has {data.what}")
    if args.units == "pixels" and data.what != "images":
        raise UsageError(
            f"--units pixels is for images; {data.name} has {data.what}, and σ is with respect to "
            f"{OF_TOKENS if data.are_tokens else OF_ROWS}"
        )
    split = getattr(data, args.split)
    images, labels = split.images[: args.images], split.labels[: args.images]
    model = model.to(device)
    x = images.to(device)
    body, x = (model.body, model.normalize(x)) if args.units == "normalized" else (model, x)
    found = sensitivities(body, x, at=model.at)
    numbers = summary(found, labels, data.classes, args.top)
    numbers |= {
        "data": data.name,
        "split": args.split,
        "units": {"images": args.units, "rows": OF_ROWS, "tokens": OF_TOKENS}[data.what],
    }
    if args.folder is not None:
        numbers |= {"method": read_config(args.folder).label}
    if args.picture:
        from ..pictures import sensitivity_picture  # here, since importing matplotlib is slow

        shown = found.most_sensitive(PICTURED)
        vectors = directions(body, x[shown.to(device)], args.vectors or 1)
        sensitivity_picture(
            args.picture, found, shown, vectors, images, labels, data.classes, UNITS[args.units]
        )
    if args.json:
        print(json.dumps(numbers | {"environment": environment(device)}))
    else:
        print(_report(numbers, "texts" if data.are_tokens else data.what))
        if args.picture:
            print(f"picture: {args.picture}")


def data_and_model(args: argparse.Namespace) -> tuple[DataSet, Normalized]:
    """The data set and the network that a command names: those of a run, or the user's own."""
    if (args.folder is None) == (args.net is None):
        raise UsageError("name either the folder of a run or --net, and not both")
    if args.folder is not None:
        if any((args.weights, args.takes, args.output, args.tokens, args.at)):
            raise UsageError(
                "--weights, --takes, --output, --tokens and --at go with --net; a run has its own"
            )
        check_finished(args.folder)
        config = read_config(args.folder)
        data = load_data(args, config, args.folder)
        return data, load_run(args.folder, config, data)
    if args.data is None:
        raise UsageError("a net needs --data: name the data to measure on")
    data = load_data(args)
    return data, load_net(args, data)


def load_data(
    args: argparse.Namespace, config: RunConfig | None = None, folder: Path | None = None
) -> DataSet:
    """The data of --data. Without it, the data of the run, which must not have changed."""
    if args.data is None and config is not None:
        return classification.load(located(config, folder), args.data_root, Path())
    tokens = bool(args.tokens or args.at) if config is None else config.how_to_read["tokens"]
    data = load(args.data, args.data_root, label=args.label or "", tokens=tokens)
    if data.own and not getattr(args, "json", False):
        print(data.told(), file=sys.stderr)
    return data


def load_net(args: argparse.Namespace, data: DataSet) -> Normalized:
    """The network of --net with the weights of --weights. --takes says what it was trained on."""
    shape = tuple(data.train.images.shape[1:])
    body = build(args.net, shape, len(data.classes), output=args.output)
    if args.weights is not None:
        load_weights(body, args.weights)
    else:
        print("no --weights: the net has its initial weights", file=sys.stderr)
    model = normalized(body, data, args.takes or "normalized", args.at or "")
    check_fits(model, data)
    return model


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a state_dict from safetensors or torch.save. No code in the file is run."""
    if path.suffix == ".safetensors":
        state, _ = load_safetensors(path)
    else:
        state = _unpickled(path)
    if {"mean", "std"} <= set(state) and any(name.startswith("body.") for name in state):
        raise UsageError(f"{path}: these are the weights of a run; use jacnorm measure {path.parent}")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UsageError(f"{path}: these are not the weights of this net ({error})") from error


def _unpickled(path: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except Exception as error:  # torch.load may raise anything for damaged files
        raise UsageError(
            f"{path}: not a plain state_dict; save model.state_dict() with safetensors or torch.save "
            f"({type(error).__name__})"
        ) from error
    if not isinstance(state, dict):
        raise UsageError(f"{path}: holds a {type(state).__name__}, not a state_dict")
    return state


def _report(n: dict[str, Any], what: str) -> str:
    heads = ["mean", "5%", "50%", "95%", "100%"]
    rows = [["σ", what, *(h.replace("100%", "max").replace("50%", "median") for h in heads)]]
    groups = {"all": n["sigma"] | {"images": n["images"]}} | n["by_class"]
    for name, q in groups.items():
        rows.append([name, str(q["images"]), *(f"{q[h]:.3f}" for h in heads)])
    most = [["most sensitive", "σ", "label", "predicted"]]
    for m in n["most_sensitive"]:
        most.append([f"#{m['index']}", f"{m['sigma']:.3f}", m["label"], m["predicted"]])
    quality = f"every σ is within {n['worst_relative_residual']:.0e} (relative) of a singular value"
    if n["not_converged"]:
        quality += f"; {n['not_converged']} did not reach the tolerance"
    trained = f"Method: {n['method']}. " if "method" in n else ""
    intro = (
        f"{trained}{n['data']} {n['split']}, {n['images']} {what}, {n['accuracy']:.1%} of them classified "
        "correctly.\n"
        f"σ = ‖J(x)‖₂ with respect to {UNITS.get(n['units'], n['units'])}; {quality}."
    )
    return f"{intro}\n\n{table(rows)}\n\n{table(most)}"
