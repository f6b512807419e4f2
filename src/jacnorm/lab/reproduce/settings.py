"""Which settings were chosen for each method, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..config import TOLD_BY_THE_LABEL, RunConfig, field_names
from ..sweep.experiment import Experiment
from .choice import Choice
from .numbers import NOTHING, plain
from .section import Table

ALWAYS = ("learning_rate", "batch_size", "weight")
LOSSES = {"paper": "test loss", "held-out": "held-out loss"}  # what each protocol chooses by


def settings_table(experiment: Experiment, choices: Sequence[Choice]) -> Table:
    protocols = {run.protocol for run in experiment.runs}
    loss = LOSSES[protocols.pop()] if len(protocols) == 1 else "validation loss"
    by = "of the screening run" if experiment.screening_epochs is not None else "mean over seeds"
    names = [*ALWAYS, *_varied(experiment.runs)]
    rows = tuple(_row(experiment, choice, names) for choice in choices)
    starred = any(cell.startswith("*") for row in rows for cell in row)
    return Table(
        caption=f"Settings chosen for each method: the lowest {loss} ({by}) among those compared."
        + " An asterisk: at the edge of the grid." * starred,
        header=("method", *(_title(name) for name in names), loss, "compared"),
        rows=rows,
    )


def _varied(runs: Sequence[RunConfig]) -> list[str]:
    """What else the grid varies."""
    others = [name for name in field_names() if name not in (*ALWAYS, *TOLD_BY_THE_LABEL, "seed")]
    return [name for name in others if len({getattr(run, name) for run in runs}) > 1]


def _title(name: str) -> str:
    return "λ" if name == "weight" else name.replace("_", " ")


def _row(experiment: Experiment, choice: Choice, names: Sequence[str]) -> tuple[str, ...]:
    setting = choice.setting.relevant()
    grid = sorted({run.weight for run in experiment.runs})
    edge = "*" if len(grid) > 2 and setting.get("weight") in (grid[0], grid[-1]) else ""  # of two, each is
    cells = [(edge if name == "weight" else "") + _shown(setting.get(name)) for name in names]
    return (choice.label, *cells, plain(choice.loss, 4), f"{choice.compared} of {choice.settings}")


def _shown(value: Any) -> str:
    """
    >>> _shown(None), _shown(True), _shown(1e-4), _shown("lenet")
    ('–', 'yes', '0.0001', 'lenet')
    """
    if value is None:  # of no meaning for the method
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
