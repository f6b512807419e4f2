"""jacnorm evaluate"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..data import load
from ..environment import environment
from ..run_files import load_run, read_config
from ..score import score
from .common import add_command, add_machine_options, table, use_machine


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "evaluate",
        "Evaluate a trained network on the test split.",
        "jacnorm evaluate runs/digits-mlp-spectral-0.01-s0-0123456789",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the folder of a finished run")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    add_machine_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    device = use_machine(args)
    config = read_config(args.folder)
    data = load(config.data, args.data_root)
    model = load_run(args.folder, config, data).to(device)
    found = score(model, data.test.to(device))
    if args.json:
        print(json.dumps({"id": config.id, "test": found, "environment": environment(device)}))
        return
    rows = [
        ["accuracy", f"{found['accuracy']:.2%}"],
        ["loss", f"{found['loss']:.4f}"],
        ["mean σ, normalized input", f"{found['sigma']:.3f}"],
    ]
    print(f"{config.id}, {len(data.test)} test images\n{table(rows)}")
