"""Options that several commands share."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError


def add_command(commands: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """A command whose --help ends with an example."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary[0].lower() + summary[1:].rstrip("."),
        description=summary,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    machine = parser.add_argument_group("where it runs")
    machine.add_argument("--data-root", type=Path, help="folder with the data sets (or set JACNORM_DATA)")
    machine.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    machine.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's)")


def use_machine(args: argparse.Namespace) -> torch.device:
    """Apply --threads, and the device that --device means."""
    need_one_or_more(args, "threads")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    return choose_device(args.device)


def need_one_or_more(args: argparse.Namespace, *names: str) -> None:
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: it must be 1 or more")


def choose_device(name: str) -> torch.device:
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--device {name}: not to be had here ({reason}); try --device auto") from error
    return device


def prepare_folder(option: str, folder: Path) -> None:
    """Before the work, not after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {folder}: cannot be made ({error.strerror})") from error


def need(package: str, option: str, install: str | None = None) -> None:
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{option} needs the package {package}: pip install '{install or package}'")
