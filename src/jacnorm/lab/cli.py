"""The command line: parse, run, and turn a user's mistake into one clear line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .. import __version__
from ..errors import JacnormError
from .errors import UsageError
from .machine import keep_memory
from .wording import did_you_mean

COMMANDS = ("demo", "train", "evaluate", "measure", "doctor", "sweep", "reproduce", "report", "bench")


class Parser(argparse.ArgumentParser):
    """Names the nearest option when one does not exist."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What a command does not know is its own to tell, and not left for the parser above it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = did_you_mean(unknown[0].partition("=")[0], list(self._option_string_actions))
            near = f": {hint}" if hint.startswith("did") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    """With the command that is named, or with all of them where none is."""
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
    """0, 1 for a run that failed, 2 for a mistake in what was asked."""
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
    print(f"jacnorm: error: {error}", file=sys.stderr)
    return code
