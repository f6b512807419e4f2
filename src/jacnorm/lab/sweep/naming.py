"""What runs are called in front of people: as in tables, with what tells them apart."""

from __future__ import annotations

from collections.abc import Iterable

from ..config import TOLD_BY_THE_LABEL, RunConfig, field_names


def names(runs: Iterable[RunConfig]) -> dict[str, str]:
    """By id: the label, λ if it has one, the seed, and any other setting that these runs differ in."""
    runs = list(runs)
    told = {*TOLD_BY_THE_LABEL, "weight", "seed"}
    others = [
        name for name in field_names() if name not in told and len({getattr(r, name) for r in runs}) > 1
    ]
    return {run.id: _name(run, others) for run in runs}


def _name(run: RunConfig, others: Iterable[str]) -> str:
    settings = run.relevant()
    weight = f" {run.weight:g}" if "weight" in settings else ""
    rest = "".join(f", {name} {settings[name]}" for name in others if name in settings)
    return f"{run.label}{weight} s{run.seed}{rest}"
