"""The file of a figure: which networks, what is measured, and what the paper found.

figure = 3
title = "Figure 3, KMNIST"
networks = "table1-kmnist"      # those chosen there

[measure]                       # settings of that figure's measurement; what is left out has its default
images = 1000

[[claims]]                      # as in an experiment's file
text = "…"
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..claim import Claim, read_claims
from ..config import ConfigError, read_toml
from ..wording import did_you_mean
from .cost import Cost
from .distances import Distances
from .robustness import Robustness
from .subject import Measurement

MEASUREMENTS: dict[int, type[Any]] = {3: Robustness, 4: Distances, 5: Cost}
KEYS = {"figure", "title", "networks", "measure", "claims"}


@dataclass(frozen=True)
class FigurePlan:
    name: str
    title: str
    figure: int
    networks: str  # the table's experiment
    measurement: Measurement
    claims: tuple[Claim, ...]


def read_figure(path: Path) -> FigurePlan:
    content = read_toml(path)
    if unknown := set(content) - KEYS:
        raise ConfigError(f"{path}: there is no {unknown.pop()!r}; there are {', '.join(sorted(KEYS))}")
    figure, networks = content.get("figure"), content.get("networks")
    if figure not in MEASUREMENTS or not isinstance(networks, str):
        numbers = ", ".join(map(str, MEASUREMENTS))
        raise ConfigError(f"{path}: needs figure = one of {numbers}, and networks = an experiment's name")
    return FigurePlan(
        name=path.stem,
        title=content.get("title", path.stem),
        figure=figure,
        networks=networks,
        measurement=_measurement(path, MEASUREMENTS[figure], content.get("measure", {})),
        claims=read_claims(path, content.get("claims", [])),
    )


def _is_like(value: Any, default: Any) -> bool:
    """Of the same type; of numbers, at least one is above 0, or there would be nothing to measure."""
    if not isinstance(default, tuple):
        return type(value) is type(default) or (type(default), type(value)) == (float, int)
    several = isinstance(value, list) and all(_is_like(element, default[-1]) for element in value)
    return several and any(isinstance(element, str) or element > 0 for element in value)


def _measurement(path: Path, kind: type[Any], settings: dict[str, Any]) -> Measurement:
    known = [field.name for field in fields(kind)]
    if unknown := [name for name in settings if name not in known]:
        raise ConfigError(f"{path}: [measure] {unknown[0]}: {did_you_mean(unknown[0], known)}")
    for name, value in settings.items():
        if not _is_like(value, getattr(kind(), name)):
            example = str(getattr(kind(), name)).translate(str.maketrans("()", "[]"))
            raise ConfigError(f"{path}: [measure] {name} = {value!r}: needs something like {example}")
    made: Measurement = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()})
    return made
