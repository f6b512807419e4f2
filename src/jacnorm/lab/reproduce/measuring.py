"""Measure each network of a figure once."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from ..nets import is_own
from ..results import append_result, neighbours, read_results, short
from ..run import environment
from ..sweep.experiment import Experiment
from ..wording import count
from .figures import Subjects, subjects
from .networks import Bench, Network, kept_networks, unpack
from .plan import FigurePlan

LOG_SECONDS = 300  # a quick figure has one line, one that takes hours shows that it goes on


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
