"""The command line: parse, run, and turn a user's mistake into one clear line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from .. import __version__
from ..errors import JacnormError
from .commands import demo, evaluate, measure, train
from .errors import UsageError


class Parser(argparse.ArgumentParser):
    """Names the nearest option when one does not exist."""

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split()
        if unknown and message.startswith("unrecognized"):
            near = get_close_matches(unknown[0].partition("=")[0], self._known_options(), n=1)
            message += f" (did you mean {near[0]}?)" if near else ""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _known_options(self) -> list[str]:
        own = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                own += [o for parser in action.choices.values() for o in parser._option_string_actions]
        return own


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
    for command in (demo, train, evaluate, measure):
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """0, 1 for a run that failed, 2 for a mistake in what was asked."""
    args = make_parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except UsageError as error:
        return _fail(error, 2)
    except JacnormError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        kept = "; finished epochs are kept, go on with --resume" if hasattr(args, "resume") else ""
        print(f"\njacnorm: stopped{kept}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough, as in `jacnorm … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _fail(error: JacnormError, code: int) -> int:
    print(f"jacnorm: error: {error}", file=sys.stderr)
    return code
