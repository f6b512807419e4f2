"""Table 1: test accuracy of each method, ours beside the paper's, the settings, and the epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from ..claims import Outcome, Quantities, decide
from ..config import TOLD_BY_THE_LABEL, RunConfig, field_names
from ..statistics import welch
from ..sweep.experiment import Experiment
from ..wording import count, in_words, part_of, plain, signed, spread, spreads
from .chapter import POINTS, Chapter, Table
from .runs import LATE, NUMBERS, Runs, read_runs
from .weights import by_weight, weight_table

ALIKE = 2  # standard errors
ALWAYS = ["learning_rate", "batch_size", "weight"]  # in each table of settings
QUANTITIES = ("accuracy", "best_accuracy", "late_accuracy", "sigma", "seconds")
BY = {"paper": "the test split", "held-out": "held-out images"}  # what each protocol chooses by
LOSSES = {"paper": "test loss", "held-out": "held-out loss"}
PROTOCOLS = {
    "paper": "Protocol “paper”: settings are chosen by the loss on the test split, and accuracy is reported "
    "on the same split, which is how we read the paper; so accuracies are biased upwards a little.",
    "held-out": "Protocol “held-out”: settings are chosen on a sixth of the train split, held out; accuracy "
    "is on the test split, which no choice has seen. Networks are trained on the other five sixths alone.",
}


def table1(experiment: Experiment) -> Chapter:
    """The chapter of a table. Nothing is trained here."""
    runs = read_runs(experiment)
    quantities: dict[str, pd.DataFrame] = {name: runs.by_seed(name) for name in QUANTITIES}
    quantities["paper"] = pd.DataFrame({label: [mean] for label, (mean, _) in experiment.paper.items()})
    accuracy = _accuracy(experiment, quantities)
    weights = by_weight(runs)
    there, units = len(runs.choices) > 0, dict.fromkeys(quantities, POINTS)
    return Chapter(
        name=experiment.name,
        title=experiment.title,
        notes=(*how_chosen(experiment), *_agreement(accuracy), *runs.diverged, *runs.missing),
        tables=stamped(experiment, _tables(runs, accuracy, weights)) if there else (),
        verdicts=with_settings(decide(experiment.claims, quantities, units), runs) if there else (),
        quantities=quantities,
        warnings=runs.stored.warnings,
        under_way=runs.under_way,
        accuracy=accuracy if accuracy["mean"].notna().any() else None,
        weights=weights,
        results=tuple(runs.stored.records.values()),
    )


def _accuracy(experiment: Experiment, quantities: Quantities) -> pd.DataFrame:
    """A row for each method: our accuracy, the paper's, and the difference."""
    of = quantities["accuracy"]
    paper = pd.DataFrame.from_dict(experiment.paper, orient="index", columns=["paper", "paper_sd"])
    found = pd.DataFrame({"mean": of.mean(), "sd": of.std()}).join(paper)
    found["difference"] = found["mean"] - found["paper"]
    found["errors"] = [welch(of[name], *found.loc[name, ["paper", "paper_sd"]])[0] for name in of]
    return found


def _agreement(accuracy: pd.DataFrame) -> tuple[str, ...]:
    """Whether our means are the paper's, in words."""
    errors = accuracy["errors"].dropna()
    if errors.empty:
        return ()
    told = f"Within {ALIKE} standard errors of the paper's mean: "
    told += _quoted(errors.index[errors.abs() < ALIKE]) or "not one"
    for side, far in (("below", errors <= -ALIKE), ("above", errors >= ALIKE)):
        if far.any():
            told += f"; further {side}: {_quoted(errors.index[far])}"
    return (f"{told}.",)


def _quoted(labels: Iterable[str]) -> str:
    """In quotes, since one method is called none."""
    return ", ".join(f"“{label}”" for label in labels)


def how_chosen(experiment: Experiment) -> tuple[str, ...]:
    """Stages and protocol in full. Other tables and figures have `in_short`."""
    seeds, epochs = len({run.seed for run in experiment.runs}), experiment.runs[0].epochs
    full = f"{count(seeds, 'seed')}, {count(epochs, 'epoch')}"
    if experiment.screening_epochs is None:
        stages = f"The whole grid: {count(len(experiment.runs) // seeds, 'setting')}, each with {full}."
    else:
        stages = (
            f"Two-stage screening: {count(len(experiment.screening_runs()), 'setting')}, 1 seed, "
            f"{count(experiment.screening_epochs, 'epoch')}; then the best of each method, {full}."
        )
    return stages, PROTOCOLS[experiment.runs[0].protocol]


def _stages(experiment: Experiment) -> str:
    return "the whole grid" if experiment.screening_epochs is None else "two-stage screening"


def in_short(experiment: Experiment) -> str:
    protocol = experiment.runs[0].protocol
    return f"{_stages(experiment)} by the loss on {BY[protocol]} (protocol “{protocol}”)"


def stamped(experiment: Experiment, tables: Iterable[Table]) -> tuple[Table, ...]:
    """The caption says how a table was made, since it may be copied without the notes."""
    words = f"(Protocol “{experiment.runs[0].protocol}”, {_stages(experiment)}.)"
    return tuple(replace(table, caption=f"{table.caption} {words}") for table in tables)


def _tables(runs: Runs, accuracy: pd.DataFrame, weights: pd.DataFrame | None) -> list[Table]:
    found = [_accuracy_table(runs, accuracy), _settings_table(runs)]
    watched = runs.experiment.paper and runs.experiment.runs[0].protocol == "paper"
    if watched and len(runs.networks):  # on the very images that the paper's numbers are of
        found.append(_epoch_table(runs, accuracy))
    if weights is not None:
        found.append(weight_table(weights, runs, BY[runs.experiment.runs[0].protocol]))
    return found


def _accuracy_table(runs: Runs, accuracy: pd.DataFrame) -> Table:
    with_paper = bool(runs.experiment.paper)
    theirs = (
        " The difference to the paper's is also in standard errors (s.e.). Five runs in the paper; methods "
        "that it has no number for are ours."
    )
    sigma, seeds = runs.by_seed("sigma"), runs.frame["seed"].nunique()
    cells = pd.DataFrame(index=accuracy.index.rename("method"))
    cells["n"] = [part_of(n, seeds) for n in sigma.count()]
    cells["ours" if with_paper else "accuracy"] = spreads(accuracy["mean"], accuracy["sd"])
    if with_paper:
        cells["paper"] = spreads(accuracy["paper"], accuracy["paper_sd"])
        cells["difference"] = accuracy["difference"].map(signed)
        cells["in s.e."] = accuracy["errors"].map(lambda errors: signed(errors, 1))
    cells["σ"] = sigma.apply(spread)
    highest = cells.index.get_indexer([_highest(runs, accuracy)])[0]
    return Table.of(
        "Test accuracy in percent, mean ± standard deviation over n seeds; σ is the mean spectral "
        f"norm on the first test images, normalized input.{theirs if with_paper else ''}",
        cells,
        best=frozenset((highest, j) for j in range(1 + cells.shape[1]) if highest >= 0),
        bold="the highest mean" + " of the paper's methods" * with_paper,
    )


def _highest(runs: Runs, accuracy: pd.DataFrame) -> str | None:
    """The best of the paper's methods of which no seed diverged. None while runs are missing."""
    trained, choices = runs.networks["method"].value_counts(), runs.choices
    whole = [name for name, seeds in choices["seeds"].items() if trained.get(name) == seeds]
    compared = accuracy["mean"][[name for name in whole if name in (runs.experiment.paper or whole)]]
    return compared.idxmax() if len(compared) and not runs.under_way else None


def _settings_table(runs: Runs) -> Table:
    experiment, loss = runs.experiment, LOSSES[runs.experiment.runs[0].protocol]
    screened = experiment.screening_epochs is not None
    by, later = ("of the screening run", ("in the end",)) if screened else ("mean over seeds", ())
    known = [name for name in field_names() if name not in (*ALWAYS, *TOLD_BY_THE_LABEL, "seed")]
    varied = runs.full[known].nunique()
    names = [*ALWAYS, *varied.index[varied > 1]]
    grid = sorted(runs.full["weight"].unique())
    rows = []
    for label, choice in runs.choices.iterrows():
        setting = choice["config"].relevant()
        edge = "*" * (len(grid) > 2 and setting.get("weight") in (grid[0], grid[-1]))  # of two, each is
        cells = [edge * (name == "weight") + in_words(setting.get(name)) for name in names]
        ended = runs.networks["loss"][runs.networks["method"] == label]
        ends = [spread(ended, 3)] if screened else []
        losses = (plain(choice["loss"], 3), plain(choice["next_best"], 3), *ends)
        rows.append((label, *cells, *losses, f"{choice['compared']} of {choice['settings']}"))
    starred = any(cell.startswith("*") for row in rows for cell in row)
    return Table(
        caption=f"Settings chosen for each method: the lowest {loss} ({by}) among those compared, beside the "
        "next best setting's"
        + "; in the end: after all epochs, mean ± standard deviation over seeds" * screened
        + "."
        + " An asterisk: at the edge of the grid." * starred,
        header=("method", *map(_title, names), loss, "next best", *later, "compared"),
        rows=tuple(rows),
    )


def _epoch_table(runs: Runs, accuracy: pd.DataFrame) -> Table:
    """Which epoch counts? The paper does not say."""
    some = min(LATE, runs.experiment.runs[0].epochs)
    groups = runs.networks.groupby("method")
    shown, middle = groups[list(NUMBERS)].agg(spread), groups[list(NUMBERS)].median()
    cells = pd.DataFrame({"n": groups.size().astype(str), "last": shown["last"]}).rename_axis("method")
    cells[f"last {some}"] = shown["late_accuracy"]
    cells["lowest test loss"] = shown["lowest_loss_accuracy"] + middle["lowest_loss_epoch"].map(
        " ({:.0f})".format
    )
    cells["most accurate"] = shown["best_accuracy"] + middle["best_epoch"].map(" ({:.0f})".format)
    cells["paper"] = pd.Series(spreads(accuracy["paper"], accuracy["paper_sd"]), accuracy.index)
    return Table.of(
        "Test accuracy in percent by the epoch that counts, mean ± standard deviation over n seeds: "
        "the last, which claims are about unless they say otherwise; the mean of the last "
        f"{some}; those of the lowest test loss and of the highest accuracy, with the median epoch in "
        "brackets. These two are chosen by the test split itself, which flatters them. The paper does not "
        "say which it takes.",
        cells.loc[[label for label in runs.choices.index if label in cells.index]],
    )


def with_settings(verdicts: Sequence[Outcome], runs: Runs) -> tuple[Outcome, ...]:
    """Adds the other settings in which two methods differ, so that a reader does not miss them."""
    chosen = runs.choices["config"]
    found = []
    for verdict in verdicts:
        settings = [chosen[name] for name in verdict.compared if name in chosen]
        if len(settings) == 2 and (others := differing_settings(*settings)):
            verdict = replace(verdict, evidence=f"{verdict.evidence}; settings differ, too: {others}")
        found.append(verdict)
    return tuple(found)


def differing_settings(a: RunConfig, b: RunConfig) -> str:
    """
    >>> slow = RunConfig(method="none", learning_rate=0.001, batch_size=16)
    >>> differing_settings(RunConfig(), slow)
    'learning rate 0.01 and 0.001, batch size 32 and 16'
    """
    ours, theirs = a.relevant(), b.relevant()
    told = TOLD_BY_THE_LABEL | ({"weight"} if a.method != b.method else set())  # each has a λ of its own
    names = [n for n in field_names() if n in ours and n in theirs and n not in told and ours[n] != theirs[n]]
    return ", ".join(f"{_title(name)} {in_words(ours[name])} and {in_words(theirs[name])}" for name in names)


def _title(name: str) -> str:
    return "λ" if name == "weight" else name.replace("_", " ")
