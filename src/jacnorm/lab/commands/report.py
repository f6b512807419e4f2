"""jacnorm report"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checkpoint import write_atomically
from ..cli import add_command, need
from ..errors import UsageError
from ..reproduce.catalog import Item, all_items, read_item


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "report",
        "Make a page of all results: tables, figures, claims and settings, beside the paper's.",
        "jacnorm report\n  jacnorm report my.toml\n  jacnorm report --results runs/quick",
    )
    parser.add_argument(
        "files", type=Path, nargs="*", metavar="FILE", help="experiments (default: all of --experiments)"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="(default: beside each experiment's file)"
    )
    parser.add_argument(
        "--out", type=Path, help="(default: report.html, or my.html for my.toml, here or in --results)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also as Markdown; a folder: its pages")
    parser.add_argument("--experiments", type=Path, default=Path("paper"), help="(default: %(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    for package in ("jinja2", "matplotlib", "scipy", "statsmodels"):
        need(package, "a report")
    if args.results and not args.results.is_dir():
        raise UsageError(f"{args.results}: there is no such folder; jacnorm sweep and reproduce make it")
    out = args.out or (args.results or Path()) / _name(args.files)
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    # Here, since importing matplotlib is slow.
    from ..report.content import collect
    from ..report.page import to_html, write_markdown, write_pages

    items = [read_item(file, args.results) for file in args.files]
    items = items or all_items(args.experiments, args.results)
    content = collect(items, args.results, args.experiments, front=not args.files)
    for warning in content.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if not content.sections:
        raise UsageError(_nothing(args))
    there = out.exists()
    try:
        write_atomically(out, to_html(content).encode())
        if args.markdown:
            (write_pages if args.markdown.is_dir() else write_markdown)(content, args.markdown)
    except OSError as error:
        raise UsageError(f"{error.filename}: cannot be written ({error.strerror})") from error
    what = _count([part.item for part in content.sections])
    print(f"{out}: {what}" + ", replaces the earlier file" * there)


def _name(files: Sequence[Path]) -> str:
    """The file name of the page. Each experiment has its own, so no other page is overwritten."""
    return "-".join(file.stem for file in files or [Path("report")]) + ".html"


def _nothing(args: argparse.Namespace) -> str:
    if args.files:
        return f"no results of {args.files[0]} yet; jacnorm sweep {args.files[0]} makes them"
    return f"no results of {args.experiments} yet; jacnorm sweep and reproduce make them"


def _count(items: Sequence[Item]) -> str:
    if len(items) > 1:
        return f"{len(items)} tables and figures"
    return "a table" if items[0].figure is None else "a figure"
