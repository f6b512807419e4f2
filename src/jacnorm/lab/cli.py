"""The command line: parse, run, and turn a user's mistake into one clear line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .. import __version__
from ..errors import JacnormError
from .allocator import keep_memory
from .commands import bench, demo, doctor, evaluate, measure, report, reproduce, sweep, train
from .errors import UsageError
from .wording import did_you_mean


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


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="jacnorm",
        description="Measure and regularize the Jacobian of neural networks.",
        epilog="example:\n  jacnorm demo",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"jacnorm {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in (demo, train, evaluate, measure, doctor, sweep, reproduce, report, bench):
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0, 1 for a run that failed, 2 for a mistake in what was asked."""
    args = make_parser().parse_args(argv)
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
