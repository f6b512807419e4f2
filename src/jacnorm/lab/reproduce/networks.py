"""The chosen networks of a table as a folder to publish, in the layout of runs/, which it can stand for."""

from __future__ import annotations

import shutil
from pathlib import Path

from ..errors import UsageError
from ..sweep.experiment import Experiment
from .subject import networks
from .table1 import read_table1

KEPT = ("config.json", "weights.safetensors")


def keep_networks(table: Experiment, results: Path, runs: Path, folder: Path) -> int:
    """Copy what is needed to use them, and nothing of how they were trained; how many there are."""
    _, choices = read_table1(table, results)
    found = networks(choices)
    if away := [n.config.id for n in found if not (runs / n.config.id / KEPT[-1]).exists()]:
        raise UsageError(f"the weights of {len(away)} of {len(found)} networks are not in {runs}: {away[0]}")
    for network in found:
        target = folder / network.config.id
        target.mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            shutil.copyfile(runs / network.config.id / name, target / name)
    return len(found)
