"""A figure: which networks it is about, what is stored of them, and what is told of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from ..claim import Claim
from ..results import Results, as_frame, select, short
from ..sweep.experiment import Experiment
from ..wording import count
from .chapter import Chapter
from .claims import decide
from .networks import Network, networks
from .plan import FigurePlan
from .runs import Runs, read_runs
from .table1 import in_short, stamped, with_settings


@dataclass(frozen=True)
class Subjects:
    """The networks of a figure, and what is stored of them."""

    plan: FigurePlan
    runs: Runs  # of the table that the networks are from
    networks: tuple[Network, ...]
    stored: Results

    def record(self, network: Network) -> dict[str, Any]:
        return self.stored.records.get(network.config.id, {})

    def lacking(self, network: Network, record: dict[str, Any] | None = None) -> list[str]:
        """The kinds that are not measured yet, or were with other settings; by its record, or another one."""
        done = (self.record(network) if record is None else record).get("settings", {})
        kinds = self.plan.measurement.kinds(network)
        return [kind for kind, settings in kinds.items() if done.get(kind) != short(settings)]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each network that is measured whole."""
        groups: dict[str, list[dict[str, Any]]] = {label: [] for label in self.runs.experiment.labels}
        for network in self.networks:
            if not self.lacking(network):
                groups[network.label].append(self.record(network))
        return as_frame(groups)

    @property
    def missing(self) -> tuple[str, ...]:
        if not self.networks:
            return (f"No networks yet: {self.runs.experiment.title} has none that is trained in full.",)
        to_come = len(self.networks) - len(self.frame)
        return (f"Still missing: {to_come} of {len(self.networks)} networks.",) if to_come else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of files that cannot be read, and of records that are still wanted, with settings that are not."""
        done = {n.config.id: self.record(n).get("settings", {}) for n in self.networks}
        ids = [n.config.id for n in self.networks if set(self.lacking(n)) & set(done[n.config.id])]
        if not ids:
            return self.stored.warnings
        records = f"{count(len(ids), 'record')} measured with other settings"
        return (*self.stored.warnings, f"{self.plan.name}: {records}: skipped (first {ids[0]})")


def subjects(plan: FigurePlan, table: Experiment) -> Subjects:
    runs = read_runs(table)
    found = networks(runs, plan.measurement.methods)
    return Subjects(plan, runs, found, select(plan.results, {n.config.id for n in found}))


def figure(plan: FigurePlan, table: Experiment) -> Chapter:
    """All that is told of it; nothing is measured."""
    found = subjects(plan, table)
    beside = subjects(plan.beside, table) if plan.beside else found
    quantities = plan.quantities(found.frame, beside.frame)
    frame, measured, asked = found.frame, len(found.frame), len(found.networks)
    whose = f"About the networks that were chosen in “{table.title}”: {in_short(table)}."
    return Chapter(
        name=plan.name,
        title=plan.title,
        notes=(whose, *plan.measurement.notes(frame), *found.missing),
        tables=stamped(table, plan.measurement.tables(frame)) if measured else (),
        verdicts=with_settings(decide(plan.claims, quantities, plan.units), found.runs) if measured else (),
        warnings=(*found.warnings, *(beside.warnings if plan.beside else ())),
        under_way="" if measured == asked else f"{measured} of {asked} networks",
        frame=frame if measured else None,
        figure=plan.figure,
        relations=_relations(plan.claims),
        quantities=quantities,
        results=tuple(frame["record"]),
    )


def _relations(claims: Sequence[Claim]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """What is claimed to rise with something else, each pair of quantities once, and of which methods."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for claim in claims:
        if claim.rises_with:
            found.setdefault((claim.rises_with, claim.quantity), claim.methods)
    return tuple((x, y, methods) for (x, y), methods in found.items())
