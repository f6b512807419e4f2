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

from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..config import ConfigError, RunConfig, make_config, read_toml

SECTIONS = {"title", "base", "grid", "screening", "paper", "claims"}


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    runs: tuple[RunConfig, ...]  # all of them, in full
    screening_epochs: int | None = None
    paper: dict[str, Any] = field(default_factory=dict)  # what the paper found, for the report
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
        settings = {_without_seed(replace(run, epochs=self._epochs())) for run in best.values()}
        return tuple(run for run in self.runs if _without_seed(run) in settings)

    def with_protocol(self, protocol: str) -> Experiment:
        """The same under another protocol, with results of its own."""
        runs = tuple(replace(run, protocol=protocol) for run in self.runs)
        if runs == self.runs:
            return self
        return replace(self, name=f"{self.name}-{protocol}", title=f"{self.title}, {protocol}", runs=runs)

    def _epochs(self) -> int:
        return self.runs[0].epochs


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
    screening = content.get("screening", {})
    if "screening" in content and set(screening) != {"epochs"}:
        raise ConfigError(f"{path}: [screening] takes epochs alone")
    if screening and "epochs" in grid:
        raise ConfigError(f"{path}: with [screening], epochs belongs in [base]")
    runs = (
        make_config(content.get("base", {}) | dict(zip(grid, values, strict=True)))
        for values in product(*grid.values())
    )
    return Experiment(
        name=path.stem,
        title=content.get("title", path.stem),
        runs=_unique(runs),
        screening_epochs=screening.get("epochs"),
        paper=content.get("paper", {}),
        claims=tuple(content.get("claims", ())),
    )


def _values(path: Path, key: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ConfigError(f"{path}: [grid] {key} must be a list of values, found {values!r}")
    return values


def _unique(runs: Any) -> tuple[RunConfig, ...]:
    """Settings that a method does not look at make no new run."""
    return tuple({run.id: run for run in runs}.values())


def _without_seed(run: RunConfig) -> str:
    return str({k: v for k, v in sorted(asdict(run).items()) if k in run.relevant() and k != "seed"})
