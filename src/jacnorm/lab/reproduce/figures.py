"""A figure: how its file says which networks are measured, and all that is told of them.

figure = 3
title = "Figure 3, KMNIST"
networks = "../table1-kmnist"   # those chosen there: the folder of experiment.toml, or my for my.toml
beside = "../figure3-kmnist"    # optional: claims may name what another figure measures of these networks

[measure]                       # settings of the figure's measurement, each with a default
images = 1000

[[claims]]                      # as in an experiment's file
text = "…"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ..claims import Claim, Quantities, decide, read_claims
from ..config import ConfigError, read_toml
from ..results import experiment_file, experiment_name, results_file
from ..sweep.experiment import Experiment, of_protocol
from ..wording import did_you_mean
from .chapter import Chapter
from .measurement import Measurement, as_frame
from .paper_figures import Distances, Robustness, TimeAndError
from .runs import subjects
from .table1 import in_short, stamped, with_settings

MEASUREMENTS: dict[int, type[Any]] = {3: Robustness, 4: Distances, 5: TimeAndError}  # by the figure's number
KEYS = {"figure", "title", "networks", "beside", "measure", "claims", "remarks"}


@dataclass(frozen=True)
class FigurePlan:
    name: str
    title: str
    figure: int
    networks: Path  # the file of the table's experiment
    measurement: Measurement
    claims: tuple[Claim, ...]
    beside: FigurePlan | None = None
    results: Path = Path()  # the file of its results

    def quantities(self, frame: pd.DataFrame, beside: pd.DataFrame) -> Quantities:
        """What its claims can be about: its own quantities, and those of the figure beside it."""
        others = {} if self.beside is None else self.beside.measurement.quantities(beside)
        return {**others, **self.measurement.quantities(frame)}

    @property
    def units(self) -> dict[str, str]:
        return {**(self.beside.units if self.beside else {}), **self.measurement.units}

    def with_protocol(self, protocol: str) -> FigurePlan:
        """The same for networks chosen under another protocol."""
        beside = self.beside and self.beside.with_protocol(protocol)
        name, title = f"{self.name}-{protocol}", f"{self.title}, {protocol}"
        results = of_protocol(self.results, protocol)
        return replace(self, name=name, title=title, beside=beside, results=results)


def read_figure(path: Path, results: Path | None = None) -> FigurePlan:
    """Its results are beside it, unless a folder of results is named."""
    plan, beside = _read(path, results)
    if beside is None:
        return plan
    if not isinstance(beside, str):
        raise ConfigError(f"{path}: beside = {beside!r}: needs a figure's name")
    other, _ = _read(experiment_file(path, beside), results)
    if other.networks != plan.networks:
        raise ConfigError(f"{path}: beside = {beside!r} is about other networks, {other.networks}")
    nothing = as_frame({})
    if both := set(other.measurement.quantities(nothing)) & set(plan.measurement.quantities(nothing)):
        raise ConfigError(f"{path}: beside = {beside!r} measures {both.pop()!r} as well: which is meant?")
    return replace(plan, beside=other)


def _read(path: Path, results: Path | None) -> tuple[FigurePlan, Any]:
    """And the value of `beside`."""
    content = read_toml(path)
    if unknown := set(content) - KEYS:
        raise ConfigError(f"{path}: there is no {unknown.pop()!r}; there are {', '.join(sorted(KEYS))}")
    figure, networks = content.get("figure"), content.get("networks")
    if type(figure) is not int or figure not in MEASUREMENTS or not isinstance(networks, str):
        numbers = ", ".join(map(str, MEASUREMENTS))
        raise ConfigError(f"{path}: needs figure = one of {numbers}, and networks = an experiment's name")
    if not isinstance(title := content.get("title", experiment_name(path)), str):
        raise ConfigError(f"{path}: title = {title!r}: needs a text")
    plan = FigurePlan(
        name=experiment_name(path),
        title=title,
        figure=figure,
        networks=experiment_file(path, networks),
        measurement=_measurement(path, MEASUREMENTS[figure], content.get("measure", {})),
        claims=read_claims(path, content.get("claims", [])),
        results=results_file(path, results),
    )
    return plan, content.get("beside")


def _is_like(value: Any, default: Any) -> bool:
    """Whether a value has the type of the default. Numbers must be above 0, since there would be nothing to
    measure, and lists of numbers must rise. A 0 is allowed where the default has one.
    """
    if not isinstance(default, tuple):
        is_number = type(value) is type(default) or (type(default), type(value)) == (float, int)
        return is_number and (value > 0 or value == default == 0)
    if not isinstance(value, list) or not value:
        return False
    if isinstance(default[0], str):
        return all(isinstance(element, str) for element in value)
    above = value[1:] if value[0] == default[0] == 0 else value
    return bool(above) and all(_is_like(v, default[-1]) for v in above) and value == sorted(set(value))


def _measurement(path: Path, kind: type[Any], settings: Any) -> Measurement:
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: [measure] is a part of its own, found measure = {settings!r}")
    defaults = {field.name: field.default for field in fields(kind)}
    for name, value in settings.items():
        if name not in defaults:
            raise ConfigError(f"{path}: [measure] {name}: {did_you_mean(name, defaults)}")
        if not _is_like(value, defaults[name]):
            example = str(defaults[name]).translate(str.maketrans("()", "[]"))
            many = "a list, rising if it is of numbers," if isinstance(value, list) else "something"
            raise ConfigError(f"{path}: [measure] {name} = {value!r}: needs {many} like {example}")
    made: Measurement = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})
    return made


def figure(plan: FigurePlan, table: Experiment) -> Chapter:
    """The chapter of a figure. Nothing is measured here."""
    found = subjects(plan, table)
    beside = subjects(plan.beside, table) if plan.beside else found
    quantities = plan.quantities(found.frame, beside.frame)
    frame, there = found.frame, bool(found.measured)
    whose = f"About the networks that were chosen in “{table.title}”: {in_short(table)}."
    return Chapter(
        name=plan.name,
        title=plan.title,
        notes=(whose, *plan.measurement.notes(frame), *found.missing),
        tables=stamped(table, plan.measurement.tables(frame)) if there else (),
        verdicts=with_settings(decide(plan.claims, quantities, plan.units), found.runs) if there else (),
        warnings=(*found.warnings, *(beside.warnings if plan.beside else ())),
        under_way=found.under_way,
        frame=frame if there else None,
        figure=plan.figure,
        relations=_relations(plan.claims),
        quantities=quantities,
        results=tuple(frame["record"]),
    )


def _relations(claims: Sequence[Claim]) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Pairs of quantities that are claimed to rise together, each pair once, and the methods."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for claim in claims:
        if claim.rises_with:
            found.setdefault((claim.rises_with, claim.quantity), claim.methods)
    return tuple((x, y, methods) for (x, y), methods in found.items())
