"""Which settings were chosen for each method, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..config import TOLD_BY_THE_LABEL, RunConfig, field_names
from ..results import validation_loss
from ..sweep.experiment import Experiment
from .chapter import Outcome, Table
from .choice import Choice
from .numbers import NOTHING, mean_sd, plain
from .statistics import summary

ALWAYS = ("learning_rate", "batch_size", "weight")
LOSSES = {"paper": "test loss", "held-out": "held-out loss"}  # what each protocol chooses by


def settings_table(experiment: Experiment, choices: Sequence[Choice]) -> Table:
    protocols = {run.protocol for run in experiment.runs}
    loss = LOSSES[protocols.pop()] if len(protocols) == 1 else "validation loss"
    screened = experiment.screening_epochs is not None
    by, later = ("of the screening run", ("in the end",)) if screened else ("mean over seeds", ())
    names = [*ALWAYS, *_varied(experiment.runs)]
    rows = tuple(_row(experiment, choice, names) for choice in choices)
    starred = any(cell.startswith("*") for row in rows for cell in row)
    return Table(
        caption=f"Settings chosen for each method: the lowest {loss} ({by}) among those compared, beside the "
        "next best setting's"
        + "; in the end: after all epochs, mean ± standard deviation over seeds" * screened
        + "."
        + " An asterisk: at the edge of the grid." * starred,
        header=("method", *(_title(name) for name in names), loss, "next best", *later, "compared"),
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
    losses = [NOTHING if loss is None else plain(loss, 3) for loss in (choice.loss, choice.next_best)]
    if experiment.screening_epochs is not None:
        ended = [validation_loss(result) for result in choice.runs.values()]
        losses.append(mean_sd(summary(ended), 3) if ended else NOTHING)
    return (choice.label, *cells, *losses, f"{choice.compared} of {choice.settings}")


def with_settings(verdicts: Sequence[Outcome], choices: Sequence[Choice]) -> tuple[Outcome, ...]:
    """Two methods may differ in more than the regularizer, which a reader must not miss."""
    chosen = {choice.label: choice.setting for choice in choices}
    found = []
    for verdict in verdicts:
        settings = [chosen[name] for name in verdict.compared if name in chosen]
        if len(settings) == 2 and (others := differing_settings(*settings)):
            verdict = replace(verdict, evidence=f"{verdict.evidence}; settings differ, too: {others}")
        found.append(verdict)
    return tuple(found)


def differing_settings(a: RunConfig, b: RunConfig) -> str:
    """
    >>> slow = RunConfig(method="none", learning_rate=0.001, batch_size=16)
    >>> differing_settings(RunConfig(), slow)
    'learning rate 0.01 and 0.001, batch size 32 and 16'
    """
    ours, theirs = a.relevant(), b.relevant()
    told = TOLD_BY_THE_LABEL | ({"weight"} if a.method != b.method else set())  # each has a λ of its own
    names = [n for n in field_names() if n in ours and n in theirs and n not in told and ours[n] != theirs[n]]
    return ", ".join(f"{_title(name)} {_shown(ours[name])} and {_shown(theirs[name])}" for name in names)


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
