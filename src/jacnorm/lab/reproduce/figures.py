"""A figure: measure each network once, and tell what was found."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from ..claim import Claim
from ..machine import environment
from ..nets import is_own
from ..results import Selection, append_result, neighbours, read_results, select, short
from ..sweep.experiment import Experiment
from .chapter import Chapter, Groups, Quantities, Relation
from .choice import Choice
from .claims import decide
from .networks import kept_networks, unpack
from .numbers import count
from .plan import FigurePlan
from .settings import with_settings
from .statistics import common
from .subject import Bench, Network, networks
from .table1 import in_short, read_table1, stamped

LOG_SECONDS = 300  # a quick figure has one line, one that takes hours shows that it goes on


@dataclass(frozen=True)
class Subjects:
    """The networks of a figure, and what is stored of them."""

    plan: FigurePlan
    table: Experiment
    choices: tuple[Choice, ...]
    networks: tuple[Network, ...]
    stored: Selection

    def lacking(self, network: Network) -> list[str]:
        """The kinds that are not measured yet, or were with other settings."""
        return self.lacking_in(self._record(network), network)

    def lacking_in(self, record: dict[str, Any], network: Network) -> list[str]:
        done, kinds = record.get("settings", {}), self.plan.measurement.kinds(network)
        return [kind for kind, settings in kinds.items() if done.get(kind) != short(settings)]

    def is_outdated(self, network: Network) -> bool:
        """Measured with other settings; one that is only unfinished is not."""
        done = self._record(network).get("settings", {})
        return any(kind in done for kind in self.lacking(network))

    def _record(self, network: Network) -> dict[str, Any]:
        return self.stored.results.get(network.config.id, {})


def subjects(plan: FigurePlan, table: Experiment) -> Subjects:
    _, choices = read_table1(table)
    found = networks(choices, plan.measurement.methods)
    stored = select(plan.results, {n.config.id for n in found})
    return Subjects(plan, table, choices, found, stored)


def measure(plan: FigurePlan, table: Experiment, bench: Bench) -> None:
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
    away = sum(bool(found.lacking(n)) and n not in here for n in found.networks)
    if away:
        print(
            f"{plan.title}: the weights of {count(away, 'network')} are not in {bench.runs}", file=sys.stderr
        )
    wanted = [(n, kind) for n in here for kind in found.lacking(n)]
    for network, kind in _watched(plan.title, wanted):
        append_result(plan.results, short(_record(kind, network, plan, bench)))


def _unpack(found: Subjects, bench: Bench) -> None:
    """Those that are kept beside their table are as good as trained ones."""
    if all(not found.lacking(network) for network in found.networks):
        return
    for name, file in kept_networks(found.table.results).items():
        if any(name == n.config.id for n in found.networks) and not (bench.runs / name).exists():
            unpack(file, name, bench.runs)


def _adopt(found: Subjects) -> None:
    """Take over what another figure beside this one has measured of a network with the same settings.

    Not of the user's own nets: their code may have changed since.
    """
    for network in found.networks:
        if found.lacking(network) and not is_own(network.config.net):
            files = neighbours(found.plan.results)
            others = (read_results(file).records.get(network.config.id, {}) for file in files)
            if other := next((one for one in others if not found.lacking_in(one, network)), None):
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
    records = _records(found, table)
    groups = {label: of for label, of in records.items() if of}
    measured = sum(map(len, groups.values()))
    beside = subjects(plan.beside, table) if plan.beside else None
    quantities = plan.quantities(records, _records(beside, table) if beside else {})
    verdicts = decide(plan.claims, quantities, plan.units) if groups else ()
    return Chapter(
        name=plan.name,
        title=plan.title,
        notes=(_whose(table), *plan.measurement.notes(groups), *_missing(found, measured)),
        tables=stamped(table, plan.measurement.tables(groups)) if groups else (),
        verdicts=with_settings(verdicts, found.choices) if groups else (),
        warnings=(*_warnings(found), *(_warnings(beside) if beside else ())),
        under_way=_under_way(found, measured),
        groups=groups or None,
        figure=plan.figure,
        relations=_relations(plan.claims, quantities),
        quantities=quantities,
        results=tuple(record for of in groups.values() for record in of),
    )


def _records(found: Subjects, table: Experiment) -> Groups:
    """Of each method, those that are whole; none of some."""
    whole = [n for n in found.networks if not found.lacking(n)]
    return {
        label: [found.stored.results[n.config.id] for n in whole if n.label == label]
        for label in table.labels
    }


def _relations(claims: Sequence[Claim], quantities: Quantities) -> tuple[Relation, ...]:
    """What is claimed to rise with something else, each pair of quantities once."""
    found: dict[tuple[str, str], Relation] = {}
    for claim in claims:
        if claim.rises_with:
            x, y = quantities[claim.rises_with], quantities[claim.quantity]
            points = {n: [(x[n][s], y[n][s]) for s in common(x[n], y[n])] for n in claim.methods or y}
            drawn = {name: of for name, of in points.items() if of}
            pair = (claim.rises_with, claim.quantity)
            found.setdefault(pair, Relation(*pair, drawn))
    return tuple(found.values())


def _whose(table: Experiment) -> str:
    return f"About the networks that were chosen in “{table.title}”: {in_short(table)}."


def _missing(found: Subjects, measured: int) -> tuple[str, ...]:
    if not found.networks:
        return (f"No networks yet: {found.table.title} has none that is trained in full.",)
    if measured == len(found.networks):
        return ()
    return (f"Still missing: {len(found.networks) - measured} of {len(found.networks)} networks.",)


def _under_way(found: Subjects, measured: int) -> str:
    return "" if measured == len(found.networks) else f"{measured} of {len(found.networks)} networks"


def _warnings(found: Subjects) -> tuple[str, ...]:
    """Of files that cannot be read, and of records that are still wanted, with settings that are not."""
    ids = [n.config.id for n in found.networks if found.is_outdated(n)]
    if not ids:
        return found.stored.warnings
    records = f"{count(len(ids), 'record')} measured with other settings"
    return (*found.stored.warnings, f"{found.plan.name}: {records}: skipped (first {ids[0]})")
