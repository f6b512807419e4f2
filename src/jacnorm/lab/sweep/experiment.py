"""An experiment file: a grid of configs, what the paper found, and how to choose among them.

title = "Table 1, KMNIST"

[base]                      # settings that all runs share
data = "kmnist"
net = "lenet"

[grid]                      # every combination is a run
method = ["none", "spectral"]
weight = [0.01, 0.1]
seed = [0, 1, 2, 3, 4]

[screening]                 # optional: all with one seed, then the best of each method with every seed
epochs = 10                 # of the first stage; it may be as long as a run in full

[paper]                     # optional: what the paper found, mean and standard deviation in percent
spectral = [96.61, 0.14]

[[claims]]                  # optional: what it says of that, see lab/claims.py
text = "…"
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..claims import Claim, read_claims
from ..config import (
    METHODS,
    VARIANTS,
    ConfigError,
    RunConfig,
    make_config,
    read_toml,
)
from ..data import DataError, load
from ..data.own import is_own
from ..results import experiment_name, results_file
from ..settings import Settings
from ..wording import did_you_mean

SECTIONS = {"title", "base", "grid", "screening", "paper", "claims", "remarks"}


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    runs: tuple[Any, ...]  # the settings of all of them, in full; of one task
    screening_epochs: int | None = None
    paper: dict[str, list[float]] = field(default_factory=dict)  # the paper's results, for the report
    claims: tuple[Claim, ...] = ()  # the paper's claims about them
    results: Path = Path()  # the file of its results

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of methods in tables and claims."""
        return tuple(dict.fromkeys(run.label for run in self.runs))

    @property
    def all_runs(self) -> tuple[Settings, ...]:
        """The runs of both stages, chosen or not."""
        return self.runs if self.screening_epochs is None else unique((*self.screening_runs(), *self.runs))

    def screening_runs(self) -> tuple[Settings, ...]:
        """Stage one: every setting with its first seed, for a few epochs, or for all of them."""
        assert self.screening_epochs is not None
        first = min(run.seed for run in self.runs)
        return unique(replace(run, epochs=self.screening_epochs) for run in self.runs if run.seed == first)

    def chosen_runs(self, validation_loss: dict[str, float]) -> tuple[Settings, ...]:
        """Stage two: the settings of each method with the lowest loss in stage one, with every seed.

        Runs that diverged have an infinite loss. A method without any other run is dropped.
        """
        best: dict[str, Settings] = {}
        for run in self.screening_runs():
            if math.isinf(validation_loss.get(run.id, math.inf)):
                continue
            leader = best.get(run.label)
            if leader is None or validation_loss[run.id] < validation_loss[leader.id]:
                best[run.label] = run
        settings = {setting(replace(run, epochs=self.runs[0].epochs)) for run in best.values()}
        return tuple(run for run in self.runs if setting(run) in settings)

    def with_protocol(self, protocol: str) -> Experiment:
        """The same experiment under another protocol. Its results are in another file."""
        runs = tuple(
            replace(run, protocol=protocol) if hasattr(run, "protocol") else run for run in self.runs
        )
        if runs == self.runs:
            return self
        name, title = f"{self.name}-{protocol}", f"{self.title}, {protocol}"
        return replace(self, name=name, title=title, runs=runs, results=of_protocol(self.results, protocol))


def of_protocol(results: Path, protocol: str) -> Path:
    """
    >>> str(of_protocol(Path("paper/table1-kmnist/results.jsonl"), "held-out"))
    'paper/table1-kmnist/results-held-out.jsonl'
    """
    return results.with_stem(f"{results.stem}-{protocol}")


def read_experiment(path: Path, results: Path | None = None) -> Experiment:
    """Read an experiment. Its results are beside its file, unless a folder of results is named."""
    content = read_toml(path)
    if "networks" in content:
        raise ConfigError(f"{path}: a figure trains no networks of its own; see jacnorm reproduce --help")
    unknown = set(content) - SECTIONS
    if unknown:
        raise ConfigError(
            f"{path}: there is no section {unknown.pop()!r}; there are {', '.join(sorted(SECTIONS))}"
        )
    _check_sections(path, content)
    grid = {key: _values(path, key, values) for key, values in content.get("grid", {}).items()}
    runs = _runs(path, content.get("base", {}), grid)
    experiment = Experiment(
        name=experiment_name(path),
        title=content.get("title", experiment_name(path)),
        runs=runs,
        screening_epochs=_screening_epochs(path, content.get("screening"), runs),
        paper=_paper(path, content.get("paper", {})),
        claims=read_claims(path, content.get("claims", [])),
        results=results_file(path, results),
    )
    if not content.get("base") and not content.get("grid"):
        raise ConfigError(f"{path}: asks for no runs: it has neither [base] nor [grid]")
    _check_claims(path, experiment)
    return experiment


def _check_sections(path: Path, content: Mapping[str, Any]) -> None:
    for name in ("base", "grid", "screening", "paper"):
        if not isinstance(content.get(name, {}), dict):
            raise ConfigError(f"{path}: {name} = {content[name]!r}: a section is needed, [{name}]")
    if not isinstance(content.get("title", ""), str):
        raise ConfigError(f"{path}: title = {content['title']!r}: a text is needed")
    for name in ("data", "label_column", "protocol"):
        values = content.get("grid", {}).get(name)
        if isinstance(values, list) and len(values) > 1:
            raise ConfigError(
                f"{path}: [grid] {name}: an experiment has only one {name}, or the easiest would "
                "be chosen by its loss; write one file for each"
            )


def setting(run: Settings) -> str:
    """An id of the settings without the seed."""
    return replace(run, seed=0).id


def names(runs: Iterable[Settings]) -> dict[str, str]:
    """Readable names of runs, by id: the label, λ if it has one, the seed, and other settings that differ."""
    runs = list(runs)
    told = {"weight", "seed"}.union(*(run.told_by_the_label for run in runs))
    every = dict.fromkeys(name for run in runs for name in asdict(run))
    others = [name for name in every if name not in told and _differs(name, runs)]
    return {run.id: _name(run, others) for run in runs}


def _differs(name: str, runs: Sequence[Settings]) -> bool:
    return len({getattr(run, name, None) for run in runs}) > 1


def _name(run: Settings, others: Iterable[str]) -> str:
    settings = run.relevant()
    is_told = "weight" in run.told_by_the_label or "weight" not in settings
    weight = "" if is_told else f" {run.weight:g}"
    rest = "".join(f", {name} {settings[name]}" for name in others if name in settings)
    return f"{run.label}{weight} s{run.seed}{rest}"


def _runs(path: Path, base: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> tuple[Settings, ...]:
    try:
        return of_data(
            unique(
                make_config({**base, **dict(zip(grid, values, strict=True))})
                for values in product(*grid.values())
            )
        )
    except (ConfigError, DataError) as error:
        raise ConfigError(f"{path}: {error}") from error


def of_data(runs: tuple[Settings, ...]) -> tuple[Settings, ...]:
    """Adds the fingerprint of a user's own data, unless the file has it. All runs share one data set."""
    first = runs[0]
    if not isinstance(first, RunConfig) or not is_own(first.data) or first.data_fingerprint:
        return runs
    data = load(first.data, **first.how_to_read)
    return tuple(run.with_data(data) for run in runs)


def _check_claims(path: Path, experiment: Experiment) -> None:
    """Check the claims before the training, which may take days."""
    for claim in experiment.claims:
        known = experiment.runs[0].quantities
        if unknown := [name for name in claim.quantities if name not in known]:
            raise ConfigError(
                f"{path}: quantity = {unknown[0]!r}: of trained networks there are "
                f"{', '.join(known)}; figures have others"
            )
        if absent := [name for name in claim.named if name not in experiment.labels]:
            raise ConfigError(
                f"{path}: a claim is about {absent[0]!r}, which the grid does not have; it has "
                f"{', '.join(experiment.labels)}{_about_variants(absent[0])}"
            )


def _about_variants(absent: str) -> str:
    """How to get a label that the grid does not have."""
    for method, (name, value, label) in VARIANTS.items():
        if absent in (method, label):
            with_it = f"{label} with {name} = {json.dumps(value)}"
            return f' (method = "{method}" is called {with_it}, else {method})'
    return ""


def _screening_epochs(path: Path, section: dict[str, Any] | None, runs: tuple[Settings, ...]) -> int | None:
    if section is None:
        return None
    if set(section) != {"epochs"}:
        raise ConfigError(f"{path}: [screening] takes epochs alone")
    if len({run.epochs for run in runs}) > 1:
        raise ConfigError(f"{path}: with [screening], epochs belongs in [base]")
    epochs, full = section["epochs"], runs[0].epochs
    if type(epochs) is not int or not 0 < epochs <= full:
        raise ConfigError(
            f"{path}: [screening] epochs = {epochs!r}: it must be a whole number from 1 to {full}, the "
            "length of a run in full"
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
    if twice := [value for i, value in enumerate(values) if value in values[:i]]:
        raise ConfigError(f"{path}: [grid] {key} has {twice[0]!r} twice")
    return values


def unique(runs: Any) -> tuple[Settings, ...]:
    """The runs without repeats. Runs that differ only in settings that their method ignores are the same."""
    return tuple({run.id: run for run in runs}.values())
