"""Table 1: test accuracy of each method, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..results import Selection, select
from ..sweep.experiment import Experiment
from .chapter import POINTS, Chapter, Outcome, Points, Quantities, Table
from .choice import Choice, choose, diverged, missing, under_way
from .claims import decide
from .epochs import best_accuracies, epoch_table, is_watched, late_accuracies
from .numbers import NOTHING, count, mean_sd, signed
from .settings import settings_table, with_settings
from .statistics import PAPER_RUNS, Summary, Values, standard_errors, summary

ALIKE = 2  # standard errors
BY = {"paper": "the test split", "held-out": "held-out images"}  # what each protocol chooses by
PROTOCOLS = {
    "paper": "Protocol “paper”: settings are chosen by the loss on the test split, and accuracy is reported "
    "on the same split, which is how we read the paper; so accuracies are biased upwards a little.",
    "held-out": "Protocol “held-out”: settings are chosen on a sixth of the train split, held out; accuracy "
    "is on the test split, which no choice has seen. Networks are trained on the other five sixths alone.",
}


def read_table1(experiment: Experiment) -> tuple[Selection, tuple[Choice, ...]]:
    stored = select(experiment.results, {run.id for run in experiment.all_runs})
    return stored, choose(experiment, stored.results)


def table1(experiment: Experiment) -> Chapter:
    """All that is told of it; nothing is trained."""
    stored, choices = read_table1(experiment)
    accuracy = {choice.label: accuracies(choice) for choice in choices}
    to_come = under_way(experiment, stored)
    quantities = _quantities(experiment, choices)
    return Chapter(
        name=experiment.name,
        title=experiment.title,
        notes=(
            *how_chosen(experiment),
            *agreement(experiment, accuracy),
            *diverged(experiment, stored),
            *missing(experiment, stored, choices),
        ),
        tables=_tables(experiment, choices, whole=not to_come),
        verdicts=_verdicts(experiment, choices, quantities) if choices else (),
        quantities=quantities,
        warnings=stored.warnings,
        under_way=to_come,
        accuracy=_points(experiment, accuracy),
        results=tuple(stored.results.values()),
    )


def agreement(experiment: Experiment, accuracy: Mapping[str, Values]) -> tuple[str, ...]:
    """Whether our means are the paper's, in words."""
    alike: list[str] = []
    below: list[str] = []
    above: list[str] = []
    for label in filter(experiment.paper.__contains__, experiment.labels):
        ours = _summary(list(accuracy.get(label, {}).values()))
        errors = None if ours is None else standard_errors(ours, *experiment.paper[label])
        if errors is not None:
            (alike if abs(errors) < ALIKE else below if errors < 0 else above).append(label)
    if not (alike or below or above):
        return ()
    told = [f"Within {ALIKE} standard errors of the paper's mean: {_quoted(alike) or 'not one'}"]
    told += [f"further {side}: {_quoted(of)}" for side, of in (("below", below), ("above", above)) if of]
    return (f"{'; '.join(told)}.",)


def _quoted(labels: Sequence[str]) -> str:
    """One of them is called none."""
    return ", ".join(f"“{label}”" for label in labels)


def accuracies(choice: Choice) -> Values:
    return {seed: 100 * result["test"]["accuracy"] for seed, result in choice.runs.items()}


def how_chosen(experiment: Experiment) -> tuple[str, ...]:
    """Stages and protocol, in full; `in_short` goes with every other table and figure."""
    protocols = [PROTOCOLS[name] for name in sorted({run.protocol for run in experiment.runs})]
    seeds, epochs = len({run.seed for run in experiment.runs}), experiment.runs[0].epochs
    full = f"{count(seeds, 'seed')}, {count(epochs, 'epoch')}"
    if experiment.screening_epochs is None:
        stages = f"The whole grid: {count(len(experiment.runs) // seeds, 'setting')}, each with {full}."
    else:
        stages = (
            f"Two-stage screening: {count(len(experiment.screening_runs()), 'setting')}, 1 seed, "
            f"{count(experiment.screening_epochs, 'epoch')}; then the best of each method, {full}."
        )
    return (stages, *protocols)


def stages_in_short(experiment: Experiment) -> str:
    return "the whole grid" if experiment.screening_epochs is None else "two-stage screening"


def in_short(experiment: Experiment) -> str:
    protocols = sorted({run.protocol for run in experiment.runs})
    by, names = " and ".join(BY[name] for name in protocols), " and ".join(f"“{name}”" for name in protocols)
    return f"{stages_in_short(experiment)} by the loss on {by} (protocol {names})"


def stamped(experiment: Experiment, tables: Iterable[Table]) -> tuple[Table, ...]:
    """A table may be copied from where the notes stand, so its caption says how it came about."""
    protocol = " and ".join(sorted({run.protocol for run in experiment.runs}))
    words = f"(Protocol “{protocol}”, {stages_in_short(experiment)}.)"
    return tuple(replace(table, caption=f"{table.caption} {words}") for table in tables)


def _tables(experiment: Experiment, choices: Sequence[Choice], whole: bool) -> tuple[Table, ...]:
    if not choices:
        return ()
    highest = _highest(experiment, choices) if whole else None  # else it may be yet to come
    found = [_accuracy_table(experiment, choices, highest), settings_table(experiment, choices)]
    if is_watched(experiment) and any(choice.runs for choice in choices):
        found.append(epoch_table(experiment, choices))
    return stamped(experiment, found)


def _highest(experiment: Experiment, choices: Sequence[Choice]) -> str | None:
    """Of the paper's methods, since ours are not what it compares, those of which no seed diverged."""
    compared = experiment.paper or experiment.labels
    rivals = [c for c in choices if len(c.runs) == c.seeds and c.label in compared]
    means = {c.label: summary(list(accuracies(c).values())).mean for c in rivals}
    return max(means, key=lambda label: means[label], default=None)


def _accuracy_table(experiment: Experiment, choices: Sequence[Choice], highest: str | None) -> Table:
    chosen = {choice.label: choice for choice in choices}
    header = (
        *("method", "n"),
        *(("ours", "paper", "difference", "in s.e.") if experiment.paper else ("accuracy",)),
        "σ",
    )
    theirs = (
        "The difference to the paper's is also in standard errors (s.e.). Five runs in the paper; methods "
        "that it has no number for are ours. "
    )
    return Table(
        caption="Test accuracy in percent, mean ± standard deviation over n seeds; σ is the mean spectral "
        f"norm on the first test images, normalized input. {theirs if experiment.paper else ''}".strip(),
        header=header,
        rows=tuple(_row(experiment, label, chosen.get(label)) for label in experiment.labels),
        best=frozenset(
            (i, j) for i, name in enumerate(experiment.labels) if name == highest for j in range(len(header))
        ),
        bold="the highest mean" + " of the paper's methods" * bool(experiment.paper),
    )


def _row(experiment: Experiment, label: str, choice: Choice | None) -> tuple[str, ...]:
    runs = choice.runs if choice is not None else {}
    seeds = len({run.seed for run in experiment.runs})
    ours = _summary([100 * result["test"]["accuracy"] for result in runs.values()])
    sigma = _summary([result["test"]["sigma"] for result in runs.values()])
    n = f"{seeds}" if len(runs) == seeds else f"{len(runs)} of {seeds}"
    theirs = _compared(ours, experiment.paper.get(label)) if experiment.paper else ()
    return (label, n, mean_sd(ours), *theirs, mean_sd(sigma))


def _compared(ours: Summary | None, paper: Sequence[float] | None) -> tuple[str, str, str]:
    """The paper's, and how far ours is from it."""
    if paper is None:
        return NOTHING, NOTHING, NOTHING
    mean, sd = paper
    shown = mean_sd(Summary(PAPER_RUNS, mean, sd))
    if ours is None:
        return shown, NOTHING, NOTHING
    errors = standard_errors(ours, mean, sd)
    return shown, signed(ours.mean - mean), NOTHING if errors is None else signed(errors, 1)


def _quantities(experiment: Experiment, choices: Sequence[Choice]) -> dict[str, dict[str, Values]]:
    nothing: dict[str, Values] = {label: {} for label in experiment.labels}
    of = {
        "accuracy": accuracies,
        "best_accuracy": best_accuracies,
        "late_accuracy": late_accuracies,
        "sigma": lambda choice: {seed: result["test"]["sigma"] for seed, result in choice.runs.items()},
    }
    paper: dict[str, dict[str, Values]] = {
        "paper": {label: {0: mean} for label, (mean, _) in experiment.paper.items()}
    }
    return paper | {
        name: nothing | {choice.label: found(choice) for choice in choices} for name, found in of.items()
    }


def _verdicts(
    experiment: Experiment, choices: Sequence[Choice], quantities: Quantities
) -> tuple[Outcome, ...]:
    verdicts = decide(experiment.claims, quantities, dict.fromkeys(quantities, POINTS))
    return with_settings(verdicts, choices)


def _points(experiment: Experiment, accuracy: dict[str, Values]) -> tuple[Points, Points] | None:
    summaries = {label: summary(list(values.values())) for label, values in accuracy.items() if values}
    if not summaries:
        return None
    ours: Points = {label: (found.mean, found.sd) for label, found in summaries.items()}
    return ours, {label: (mean, sd) for label, (mean, sd) in experiment.paper.items()}


def _summary(values: list[float]) -> Summary | None:
    return summary(values) if values else None
