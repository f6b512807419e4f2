"""jacnorm reproduce"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ..cli import add_command, add_data_root, choose_device, need_one_or_more, prepare_folder
from ..config import choices
from ..errors import UsageError
from ..reproduce.catalog import ITEMS, QUICK, QUICK_FOLDER, Item, find_items, read_chapter, read_item
from ..reproduce.networks import Bench, copy_networks, keep_networks, measure_missing, networks_file
from ..reproduce.runs import read_runs
from ..sweep.experiment import Experiment
from ..sweep.pool import LocalPool
from ..sweep.run import check_failed, forget_failures, train_all, warn_of_nets
from ..sweep.store import Store, check_readable
from ..wording import count, did_you_mean


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "reproduce",
        "Reproduce the paper's table and figures: run what is missing, print ours beside the paper's.",
        "jacnorm reproduce all --quick\n  jacnorm reproduce table1 --data kmnist --reuse-only",
    )
    parser.add_argument(
        "item", metavar="ITEM", help=f"{', '.join(ITEMS)}, all, or FILE.toml: a table or figure of your own"
    )
    parser.add_argument("--data", help="kmnist, fashion-mnist or cifar10 (default: each in turn)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"the whole chain on small digits, into {QUICK_FOLDER}: four minutes of CPU time, not a "
        "reproduction",
    )
    parser.add_argument("--retry", action="store_true", help="run again what has failed three times")
    parser.add_argument("--reuse-only", action="store_true", help="show existing results, run nothing")
    parser.add_argument(
        "--protocol",
        choices=choices("protocol"),
        help="choose settings on the test split (paper) or on held-out images (default: as in the file)",
    )
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="(default: beside each experiment's file)"
    )
    parser.add_argument("--runs", type=Path, help="checkpoints and weights (default: runs)")
    parser.add_argument(
        "--networks",
        type=Path,
        metavar="FOLDER",
        help="copy the networks chosen in each table into this folder, for jacnorm measure and evaluate",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the networks chosen in each table in a file beside its results",
    )
    parser.add_argument("--experiments", type=Path, default=Path("paper"), help="(default: %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="(default: one per core)")
    add_data_root(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    need_one_or_more(args, "workers")
    if args.quick:
        args.results, args.runs = args.results or QUICK_FOLDER, args.runs or QUICK_FOLDER / "runs"
    args.runs = args.runs or Path("runs")
    items = _items(args)
    if args.networks:
        if args.networks.resolve() == args.runs.resolve():
            raise UsageError(f"--networks {args.networks} is also the runs' folder: name another folder")
        prepare_folder("--networks", args.networks)
    if args.protocol:
        items = [item.with_protocol(args.protocol) for item in items]
    tables = list({item.table.name: item.table for item in items}.values())
    if not args.reuse_only:
        _prepare(tables, args)
    failed: set[str] = set()
    if all(item.is_quick for item in items):
        print("A quick look: small networks on 8×8 digits. Nothing here reproduces the paper.\n", flush=True)
    for item in items:
        if not args.reuse_only:
            failed |= _make(item, args)
        print(read_chapter(item).text(), flush=True)
    for table in tables:
        if args.networks:
            copied = copy_networks(table, args.runs, args.networks)
            print(f"{args.networks}: {count(copied, 'network')} of {table.name}")
        if args.keep:
            kept = keep_networks(table, args.runs)
            print(f"{networks_file(table.results)}: {count(kept, 'network')}")
    where = f" --results {args.results}" if args.results else ""
    print(f"As a page, with figures: jacnorm report{where}")
    if failed:
        check_failed(len(failed))


def _prepare(tables: list[Experiment], args: argparse.Namespace) -> None:
    """Prepare all tables before the first run, since several figures may use the runs of one table."""
    for table in tables:
        store = Store(table.results, args.runs)
        check_readable(store)
        warn_of_nets(table, store)
        if args.retry:
            forget_failures(table, store)


def _items(args: argparse.Namespace) -> list[Item]:
    if args.item.endswith(".toml"):
        if args.quick or args.data:
            raise UsageError(f"{args.item} says what to run: leave out --quick and --data")
        return [read_item(Path(args.item), args.results)]
    if args.item not in (names := (*ITEMS, "all")):
        raise UsageError(f"{args.item!r} is no item: {did_you_mean(args.item, names)}")
    if args.quick and args.data not in (None, QUICK):
        raise UsageError(f"--quick is on {QUICK}: leave out --data {args.data}")
    return find_items(args.experiments, args.item, QUICK if args.quick else args.data, args.results)


def _make(item: Item, args: argparse.Namespace) -> set[str]:
    """Train and measure what is missing. Returns the ids of failed runs."""
    failed: set[str] = set()
    device = choose_device(args.device)
    runs = read_runs(item.table)
    if runs.stored.newer:
        print(f"{item.table.name}: has results of a newer jacnorm, so nothing is trained", file=sys.stderr)
    elif runs.under_way:
        failed = _train(item, args, str(device))
    if item.figure is not None:
        bench = Bench(item.data, args.runs, args.data_root, device)
        measure_missing(item.figure, item.table, bench)
    return failed


def _train(item: Item, args: argparse.Namespace, device: str) -> set[str]:
    store = Store(item.table.results, args.runs)
    found = train_all(item.table, LocalPool(store, args.data_root, device, workers=args.workers))
    for config, reason in found.failed:
        print(f"failed  {config.id}  {reason}", file=sys.stderr)
    return {config.id for config, _ in found.failed}
