"""A figure: which networks it is about, what is measured of each, once, and what is told of that."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from tqdm import tqdm

from ..claim import Claim
from ..nets import is_own
from ..results import Results, append_result, neighbours, read_results, select, short
from ..run import environment
from ..sweep.experiment import Experiment
from ..wording import count
from .chapter import Chapter
from .claims import decide
from .measurement import as_frame
from .networks import Bench, Network, kept_networks, networks, unpack
from .plan import FigurePlan
from .runs import Runs, read_runs
from .table1 import in_short, stamped, with_settings

LOG_SECONDS = 300  # a quick figure has one line, one that takes hours shows that it goes on


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


def measure_missing(plan: FigurePlan, table: Experiment, bench: Bench) -> None:
    """What is not measured yet, of the networks whose weights are here; stored after each step."""
    found = subjects(plan, table)
    if found.stored.newer:
        return
    if plan.measurement.is_portable:
        _adopt(found)
        _unpack(found, bench)
        found = subjects(plan, table)
    with_rivals = plan.measurement.needs_rivals
    here = [n for n in found.networks if bench.has(n, with_rivals=with_rivals)]
    if away := sum(bool(found.lacking(n)) and n not in here for n in found.networks):
        where = f"the weights of {count(away, 'network')} are not in {bench.runs}"
        print(f"{plan.title}: {where}", file=sys.stderr)
    wanted = [(n, kind) for n in here for kind in found.lacking(n)]
    for network, kind in _watched(plan.title, wanted):
        append_result(plan.results, short(_record(kind, network, plan, bench)))


def _unpack(found: Subjects, bench: Bench) -> None:
    """Those that are kept beside their table are as good as trained ones."""
    if any(found.lacking(network) for network in found.networks):
        wanted = {network.config.id for network in found.networks}
        for name, file in kept_networks(found.runs.experiment.results).items():
            if name in wanted and not (bench.runs / name).exists():
                unpack(file, name, bench.runs)


def _adopt(found: Subjects) -> None:
    """Take over what another figure beside this one has measured of a network with the same settings.

    Not of the user's own nets: their code may have changed since.
    """
    for network in found.networks:
        if found.lacking(network) and not is_own(network.config.net):
            files = neighbours(found.plan.results)
            others = (read_results(file).records.get(network.config.id, {}) for file in files)
            if other := next((one for one in others if not found.lacking(network, one)), None):
                append_result(found.plan.results, other)


def _watched(title: str, wanted: list[tuple[Network, str]]) -> Iterator[tuple[Network, str]]:
    """A bar on a terminal; in a log file a line at the start, and a sign of life now and then."""
    if not wanted:
        return
    bar = tqdm(wanted, desc=title, unit=" measurements", dynamic_ncols=True, disable=None)
    said = -math.inf
    for done, (network, kind) in enumerate(bar):
        if bar.disable and time.monotonic() - said > LOG_SECONDS:
            said = time.monotonic()
            print(f"{title}: measuring, {done} of {len(wanted)} done", file=sys.stderr, flush=True)
        bar.set_postfix_str(f"{network.label} s{network.config.seed}, {kind}")
        yield network, kind


def _record(kind: str, network: Network, plan: FigurePlan, bench: Bench) -> dict[str, Any]:
    part = plan.measurement.measure(kind, network, bench)
    settings = {kind: plan.measurement.kinds(network)[kind]}
    head = {"id": network.config.id, "config": network.config.relevant(), "settings": settings}
    return {**head, **part, "environment": environment(bench.device)}


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
