"""jacnorm report"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..checkpoint import write_atomically
from ..errors import UsageError
from .common import add_command, need


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "report",
        "Put everything in results/ on one page: ours and the paper's, figures, claims, settings.",
        "jacnorm report\n  jacnorm report --results runs/quick/results --out quick.html",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="(default: %(default)s)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also as Markdown, figures beside it")
    parser.add_argument(
        "--experiments", type=Path, default=Path("experiments"), help="(default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    for package in ("jinja2", "matplotlib", "scipy"):
        need(package, "a report")
    if not args.results.is_dir():
        raise UsageError(f"{args.results}: there is no such folder; jacnorm reproduce makes it")
    if not args.out.parent.is_dir():
        raise UsageError(f"--out {args.out}: there is no folder {args.out.parent}")
    # Here, so that other commands do not wait for matplotlib.
    from ..report.content import collect
    from ..report.page import to_html, write_markdown

    content = collect(args.experiments, args.results)
    for warning in content.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if not content.parts:
        raise UsageError(f"{args.results}: no results of {args.experiments}/*.toml; see jacnorm reproduce")
    try:
        write_atomically(args.out, to_html(content).encode())
        if args.markdown:
            write_markdown(content, args.markdown)
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written ({error.strerror})") from error
    parts = len(content.parts)
    told = "1 table or figure" if parts == 1 else f"{parts} tables and figures"
    print(f"{args.out}: {told} from {args.results}")
