"""jacnorm sweep"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ...errors import JacnormError
from ..data import load
from ..errors import UsageError
from ..sweep.experiment import read_experiment
from ..sweep.local import LocalEngine
from ..sweep.run import known_runs, sweep
from ..sweep.status import status
from ..sweep.store import Store
from .common import add_command, choose_device


class SweepError(JacnormError):
    """Some runs failed for good."""


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "sweep",
        "Run all of an experiment, or go on with it.",
        "jacnorm sweep experiments/digits.toml --workers 2\n  jacnorm sweep experiments/digits.toml --status",
    )
    parser.add_argument("experiment", type=Path, metavar="FILE", help="an experiment, experiments/*.toml")
    parser.add_argument("--status", action="store_true", help="say how far it is, and do nothing")
    parser.add_argument("--retry", action="store_true", help="try again what has failed three times")
    parser.add_argument("--results", type=Path, default=Path("results"), help="(default: results)")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="checkpoints (default: runs)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="(default: one a core)")
    parser.add_argument("--data-root", type=Path, help="folder with the data sets (or set JACNORM_DATA)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    experiment = read_experiment(args.experiment)
    store = Store(args.results / experiment.name, args.runs)
    if args.status:
        print(status(store, known_runs(experiment, store)))
        return
    if args.workers < 1:
        raise UsageError(f"--workers {args.workers}: it must be 1 or more")
    if args.retry:
        for config in known_runs(experiment, store):
            store.forget_failures(config)
    for name in {config.data for config in experiment.runs}:
        load(name, args.data_root)  # one download before many processes, and mistakes are told at once
    engine = LocalEngine(store, args.data_root, str(choose_device(args.device)), workers=args.workers)
    try:
        found = sweep(experiment, store, engine)
    except KeyboardInterrupt:
        print("\nWhat is finished is kept; go on with the same command.")
        raise
    print(found)
    if found.failed:
        raise SweepError(f"{len(found.failed)} runs failed; mend the cause, then go on with --retry")
