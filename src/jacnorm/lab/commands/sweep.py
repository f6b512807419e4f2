"""jacnorm sweep"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ..cli import add_command, add_data_root, choose_device, need, need_one_or_more
from ..config import RunConfig
from ..data import load
from ..data.own import is_own
from ..errors import UsageError
from ..sweep.experiment import Experiment, read_experiment
from ..sweep.pool import LocalPool, Pool
from ..sweep.run import (
    check_failed,
    check_names,
    forget_failures,
    known_runs,
    status,
    to_come,
    train_all,
    warn,
    warn_of_nets,
)
from ..sweep.store import Store, check_readable, check_writable, damaged

EXAMPLES = """\
jacnorm sweep paper/quick/table1-digits.toml --workers 2
  jacnorm sweep paper/quick/table1-digits.toml --status

on several machines, each with jacnorm[lab,ray] installed and /shared mounted (docs/sweeps.md):
  ray get-auth-token --generate                     # its ~/.ray/auth_token goes to all of them
  export RAY_AUTH_MODE=token                        # on all of them
  ray start --head                                  # on the first
  ray start --address FIRST:6379                    # on each of the others
  jacnorm sweep paper/table1-kmnist/experiment.toml --engine ray --address auto \\
      --results /shared/results --runs /shared/runs # on any of them"""


def add(commands: Any) -> None:
    parser = add_command(commands, "sweep", "Run all of an experiment, or continue it.", EXAMPLES)
    parser.add_argument(
        "experiment", type=Path, metavar="FILE", help="an experiment, paper/*/experiment.toml or your own"
    )
    parser.add_argument("--status", action="store_true", help="show the progress, and run nothing")
    parser.add_argument("--retry", action="store_true", help="run again what has failed three times")
    parser.add_argument(
        "--results", type=Path, metavar="FOLDER", help="(default: beside FILE: my.jsonl for my.toml)"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="checkpoints (default: runs)")
    parser.add_argument(
        "--workers", type=int, help="runs at a time (default: one per core; with Ray: all that fit)"
    )
    add_data_root(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (default: auto)")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="processes of this machine, or Ray for more machines; they must share the folders of "
        "--results and --runs (default: local)",
    )
    ray = parser.add_argument_group("with --engine ray")
    ray.add_argument("--address", help="HOST:PORT of a cluster, or auto (default: start one on this machine)")
    ray.add_argument("--cpus-per-run", type=int, default=1, help="CPUs and threads per run (default: 1)")
    ray.add_argument(
        "--gpus-per-run", type=float, default=0, help="GPUs per run; with 0.5 two runs share one (default: 0)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    if not args.experiment.exists():
        raise UsageError(
            f"{args.experiment}: there is no such file; the paper's experiments are in a checkout of jacnorm"
        )
    experiment = read_experiment(args.experiment, args.results)
    check_names(experiment.runs)
    store = Store(experiment.results, args.runs)
    tell_of_old_results(experiment)
    if args.status:
        tell_status(experiment, store)
        return
    tell_of_data(experiment)
    pool = make_pool(args, store)
    check_writable(store)
    if args.retry:
        forget_failures(experiment, store)
    found = train_all(experiment, pool)
    print(found)
    from ..reproduce.catalog import sweep_as_text  # here, since importing pandas is slow

    print(f"\n{sweep_as_text(experiment, args.experiment, args.results)}")
    check_failed(len(found.failed))


def tell_of_data(experiment: Experiment) -> None:
    """Print a description of the user's own data."""
    run = experiment.runs[0]
    if isinstance(run, RunConfig) and is_own(run.data):
        print(load(run.data, **run.how_to_read).told(), file=sys.stderr)


def tell_of_old_results(experiment: Experiment) -> None:
    """Say how to convert results of earlier versions, which wrote one file per run."""
    for folder in (Path("results") / experiment.name, experiment.results.with_suffix("")):
        if not experiment.results.exists() and any(folder.glob("*.json")):
            raise UsageError(
                f"{folder} has one file per run, as earlier versions wrote them. Now each run is a line of "
                f"one file. To convert them: python -m jacnorm.lab.results {folder} {experiment.results}"
            )


def tell_status(experiment: Experiment, store: Store) -> None:
    check_readable(store)
    print(status(store, known_runs(experiment, store)))
    if coming := to_come(experiment, store):
        print(coming)
    warn(damaged(store))
    warn_of_nets(experiment, store)


def make_pool(args: argparse.Namespace, store: Store) -> Pool:
    need_one_or_more(args, "workers", "cpus_per_run")
    if args.engine == "ray":
        return _ray_pool(args, store)
    if (args.address, args.cpus_per_run, args.gpus_per_run) != (None, 1, 0):
        raise UsageError("--address, --cpus-per-run and --gpus-per-run need --engine ray")
    device = str(choose_device(args.device))
    return LocalPool(store, args.data_root, device, workers=args.workers or os.cpu_count() or 1)


def _ray_pool(args: argparse.Namespace, store: Store) -> Pool:
    need("ray", "--engine ray", "jacnorm[ray]")
    from ..sweep.ray import RayPool  # here, since Ray takes a second and half a gigabyte

    if args.gpus_per_run < 0 or (args.gpus_per_run > 1 and not args.gpus_per_run.is_integer()):
        raise UsageError(
            f"--gpus-per-run {args.gpus_per_run:g}: it must be a whole number or a part of one GPU"
        )
    return RayPool(
        store,
        args.data_root,
        _ray_device(args),
        workers=args.workers,
        address=args.address or "local",
        cpus_per_run=args.cpus_per_run,
        gpus_per_run=args.gpus_per_run,
    )


def _ray_device(args: argparse.Namespace) -> str:
    """The device on the machines that train, not on this one. Ray hides GPUs that a run has not requested."""
    if args.device == "auto":
        return "cuda" if args.gpus_per_run else "cpu"
    if args.device.startswith("cuda") and not args.gpus_per_run:
        raise UsageError(f"--device {args.device}: with Ray, say --gpus-per-run 1")
    return str(args.device)
