"""The chosen networks of a table as a folder to publish, in the layout of runs/, which it can stand for."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint import write_atomically
from ..config import RunConfig
from ..errors import UsageError
from ..run_files import read_config
from ..sweep.experiment import Experiment
from ..tables import markdown_table
from .numbers import NOTHING
from .subject import networks
from .table1 import read_table1

WEIGHTS, CONFIG = "weights.safetensors", "config.json"
TITLE = "# Trained networks"
INTRODUCTION = f"""{TITLE}

Networks of tables and figures, kept by `jacnorm reproduce --networks`; what was found out of
them is in the results of these experiments. To use one: `jacnorm measure FOLDER`, `jacnorm evaluate FOLDER
--noise`. To measure figures on them: `jacnorm reproduce figure3 --runs` and the name of this folder.
“spectral” starts power iteration at random, as in the paper; “spectral-warm” goes on where it stopped.
"""


def keep_networks(table: Experiment, results: Path, runs: Path, folder: Path) -> int:
    """Copy what is needed to use them, and nothing of how they were trained; how many there are."""
    _, choices = read_table1(table, results)
    found = networks(choices)
    readme = folder / "README.md"
    if readme.exists() and not readme.read_text().startswith(TITLE):
        raise UsageError(f"{readme} is about something else: give networks a folder of their own")
    if away := [n.config.id for n in found if not (runs / n.config.id / WEIGHTS).exists()]:
        raise UsageError(f"the weights of {len(away)} of {len(found)} networks are not in {runs}: {away[0]}")
    for network in found:
        target = folder / network.config.id
        target.mkdir(parents=True, exist_ok=True)
        for name in (WEIGHTS, CONFIG):
            write_atomically(target / name, (runs / network.config.id / name).read_bytes())
    if found:
        write_atomically(readme, _described(folder).encode())
    return len(found)


def _described(folder: Path) -> str:
    """Which is which, of all that are there: names alone do not tell."""
    configs = sorted(
        (
            read_config(one)
            for one in folder.iterdir()
            if (one / WEIGHTS).exists() and (one / CONFIG).exists()
        ),
        key=lambda c: (c.data, c.label, c.weight, c.learning_rate, c.batch_size, c.seed),
    )
    rows = [
        (c.id, c.label, f"{c.learning_rate:g}", str(c.batch_size), _weight(c), str(c.seed)) for c in configs
    ]
    header = ("folder", "method", "learning rate", "batch size", "λ", "seed")
    return f"{INTRODUCTION}\n{markdown_table([header, *rows])}\n"


def _weight(config: RunConfig) -> str:
    return f"{config.weight:g}" if "weight" in config.relevant() else NOTHING
