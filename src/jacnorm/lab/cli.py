"""The command line: parsing, running, errors on one line, and options that commands share."""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from .. import __version__
from ..errors import JacnormError
from .errors import UsageError
from .wording import did_you_mean, on_one_line

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 1 << 30  # bytes at the end of the heap
LARGEST = 1 << 25  # bytes of one block on the heap, the most that glibc takes

COMMANDS = ("demo", "train", "evaluate", "measure", "card", "doctor", "sweep", "reproduce", "report", "bench")


class Parser(argparse.ArgumentParser):
    """Suggests the nearest option when one does not exist."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, but the command itself reports unknown options, not the parser above it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = did_you_mean(unknown[0].partition("=")[0], list(self._option_string_actions))
            near = f": {hint}" if hint.startswith("did") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """A parser with the named command only, or with all commands if none is named."""
    parser = Parser(
        prog="jacnorm",
        description="Measure and regularize the Jacobian of neural networks.",
        epilog="example:\n  jacnorm demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"jacnorm {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    named = next((word for word in argv if not word.startswith("-")), None)
    for name in (named,) if named in COMMANDS else COMMANDS:
        importlib.import_module(f".commands.{name}", __package__).add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0, 1 if a run failed, 2 for a mistake of the user."""
    argv = sys.argv[1:] if argv is None else argv
    args = make_parser(argv).parse_args(argv)
    keep_memory()
    try:
        code: int | None = args.run(args)
        sys.stdout.flush()
    except UsageError as error:
        return _fail(error, 2)
    except JacnormError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        print("\njacnorm: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `jacnorm … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code or 0


def _fail(error: JacnormError, code: int) -> int:
    """Print the error on one line. PyTorch's own messages may have several lines."""
    print(f"jacnorm: error: {on_one_line(error)}", file=sys.stderr)
    return code


def keep_memory() -> None:
    """Keep glibc from handing memory back to the system after every training step.

    Activations are freed at the end of a step and allocated again in the next. By default their memory goes
    back to the system in between and is faulted in again, page by page. That takes a fifth of a LeNet's step.
    This changes the whole process, so we do it only in processes of our own. Without glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST)


def add_command(commands: Any, name: str, summary: str, example: str) -> argparse.ArgumentParser:
    """Add a command. Its --help ends with the example."""
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
    add_data_root(machine)
    machine.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    machine.add_argument("--threads", type=int, help="CPU threads (default: PyTorch's)")


def add_data_root(parser: Any) -> None:
    parser.add_argument("--data-root", type=Path, help="folder with the data sets (or set JACNORM_DATA)")


def use_machine(args: argparse.Namespace) -> torch.device:
    """Apply --threads. Returns the device of --device."""
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
        raise UsageError(f"--device {name}: not available here ({reason}); try --device auto") from error
    return device


def prepare_folder(option: str, folder: Path) -> None:
    """Make the folder, or fail before the work begins."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {folder}: cannot be made ({error.strerror})") from error


def need(package: str, option: str, install: str | None = None) -> None:
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{option} needs the package {package}: pip install '{install or package}'")
