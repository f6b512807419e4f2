"""An experiment file: a grid of configs, what the paper found, and how to choose among them.

title = "Table 1, KMNIST"

[base]                      # settings that all runs share
data = "kmnist"
net = "lenet"

[grid]                      # every combination is a run
method = ["none", "spectral"]
weight = [0.01, 0.1]
seed = [0, 1, 2, 3, 4]

[screening]                 # optional: look at all briefly, train the best of each method in full
epochs = 10

[paper]                     # optional: what the paper found, mean and standard deviation in percent
spectral = [96.61, 0.14]

[[claims]]                  # optional: what it says of that, see reproduce/claims.py
text = "…"
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..config import METHODS, ConfigError, RunConfig, make_config, read_toml
from ..wording import did_you_mean

SECTIONS = {"title", "base", "grid", "screening", "paper", "claims"}


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    runs: tuple[RunConfig, ...]  # all of them, in full
    screening_epochs: int | None = None
    paper: dict[str, list[float]] = field(default_factory=dict)  # what the paper found, for the report
    claims: tuple[dict[str, Any], ...] = ()  # and what it says of that

    def screening_runs(self) -> tuple[RunConfig, ...]:
        """Stage one: every setting with its first seed, for a few epochs."""
        assert self.screening_epochs is not None
        first = min(run.seed for run in self.runs)
        return _unique(replace(run, epochs=self.screening_epochs) for run in self.runs if run.seed == first)

    def chosen_runs(self, validation_loss: dict[str, float]) -> tuple[RunConfig, ...]:
        """Stage two: the settings of each method with the lowest loss in stage one, with every seed."""
        best: dict[str, RunConfig] = {}
        for run in self.screening_runs():
            if run.id not in validation_loss:
                continue
            leader = best.get(run.label)
            if leader is None or validation_loss[run.id] < validation_loss[leader.id]:
                best[run.label] = run
        settings = {setting(replace(run, epochs=self.runs[0].epochs)) for run in best.values()}
        return tuple(run for run in self.runs if setting(run) in settings)

    def with_protocol(self, protocol: str) -> Experiment:
        """The same under another protocol, with results of its own."""
        runs = tuple(replace(run, protocol=protocol) for run in self.runs)
        if runs == self.runs:
            return self
        return replace(self, name=f"{self.name}-{protocol}", title=f"{self.title}, {protocol}", runs=runs)


def read_experiment(path: Path) -> Experiment:
    content = read_toml(path)
    if "networks" in content:
        raise ConfigError(f"{path}: a figure trains no networks of its own; see jacnorm reproduce --help")
    unknown = set(content) - SECTIONS
    if unknown:
        raise ConfigError(
            f"{path}: there is no section {unknown.pop()!r}; there are {', '.join(sorted(SECTIONS))}"
        )
    grid = {key: _values(path, key, values) for key, values in content.get("grid", {}).items()}
    runs = _unique(
        make_config(content.get("base", {}) | dict(zip(grid, values, strict=True)))
        for values in product(*grid.values())
    )
    return Experiment(
        name=path.stem,
        title=content.get("title", path.stem),
        runs=runs,
        screening_epochs=_screening_epochs(path, content.get("screening"), runs),
        paper=_paper(path, content.get("paper", {})),
        claims=tuple(content.get("claims", ())),
    )


def setting(run: RunConfig) -> str:
    """The same for runs that differ in their seed alone."""
    return replace(run, seed=0).id


def _screening_epochs(path: Path, section: dict[str, Any] | None, runs: tuple[RunConfig, ...]) -> int | None:
    if section is None:
        return None
    if set(section) != {"epochs"}:
        raise ConfigError(f"{path}: [screening] takes epochs alone")
    if len({run.epochs for run in runs}) > 1:
        raise ConfigError(f"{path}: with [screening], epochs belongs in [base]")
    epochs, full = section["epochs"], runs[0].epochs
    if type(epochs) is not int or not 0 < epochs < full:
        raise ConfigError(
            f"{path}: [screening] epochs = {epochs!r}: it must be a whole number from 1 to {full - 1}, less "
            f"than the {full} of a run in full"
        )
    return int(epochs)


def _paper(path: Path, section: dict[str, Any]) -> dict[str, list[float]]:
    for label, found in section.items():
        if label not in METHODS:
            raise ConfigError(f"{path}: [paper] {label}: {did_you_mean(label, METHODS)}")
        if not isinstance(found, list) or [type(value) in (int, float) for value in found] != [True, True]:
            raise ConfigError(f"{path}: [paper] {label} = {found}: a mean and a standard deviation is needed")
    return section


def _values(path: Path, key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{path}: [grid] {key} must be a list of values, found {values!r}")
    return values


def _unique(runs: Any) -> tuple[RunConfig, ...]:
    """Settings that a method does not look at make no new run."""
    return tuple({run.id: run for run in runs}.values())
