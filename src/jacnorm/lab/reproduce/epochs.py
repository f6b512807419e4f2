"""Which epoch counts? The paper does not say, so accuracy is told at several, beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from ..results import Result
from ..sweep.experiment import Experiment
from .chapter import Table
from .choice import Choice
from .numbers import NOTHING, mean_sd
from .statistics import PAPER_RUNS, Summary, Values, summary

LATE = 10  # epochs


def last(result: Result) -> int:
    return len(result["history"]["validation_accuracy"]) - 1


def lowest_loss(result: Result) -> int:
    losses = result["history"]["validation_loss"]
    return losses.index(min(losses))


def highest_accuracy(result: Result) -> int:
    accuracies = result["history"]["validation_accuracy"]
    return accuracies.index(max(accuracies))


def late_accuracies(choice: Choice) -> Values:
    """The mean of the last epochs: at a constant learning rate a single one is a matter of chance."""
    return {seed: _late(result) for seed, result in choice.runs.items()}


def _late(result: Result) -> float:
    return 100 * fmean(result["history"]["validation_accuracy"][-LATE:])


def best_accuracies(choice: Choice) -> Values:
    """On the validation split, which is the test split under the protocol “paper”."""
    return {seed: _percent(result, highest_accuracy) for seed, result in choice.runs.items()}


def is_watched(experiment: Experiment) -> bool:
    """After each epoch the network was run on the very images that the paper's numbers are of."""
    return bool(experiment.paper) and all(run.protocol == "paper" for run in experiment.runs)


def epoch_table(experiment: Experiment, choices: Sequence[Choice]) -> Table:
    trained = [choice for choice in choices if choice.runs]
    late = min(LATE, experiment.runs[0].epochs)
    return Table(
        caption="Test accuracy in percent by the epoch that counts, mean ± standard deviation over n seeds: "
        "the last, which claims are about unless they say otherwise; the mean of the last "
        f"{late}; those of the lowest test loss and of the highest accuracy, with the median epoch in "
        "brackets. These two are chosen by the test split itself, which flatters them. The paper does not "
        "say which it takes.",
        header=("method", "n", "last", f"last {late}", "lowest test loss", "most accurate", "paper"),
        rows=tuple(_row(choice, experiment.paper.get(choice.label)) for choice in trained),
    )


def _row(choice: Choice, paper: Sequence[float] | None) -> tuple[str, ...]:
    results = list(choice.runs.values())
    theirs = NOTHING if paper is None else mean_sd(Summary(PAPER_RUNS, *paper))
    early = [_accuracy(results, of) + _when(results, of) for of in (lowest_loss, highest_accuracy)]
    late = mean_sd(summary(list(late_accuracies(choice).values())))
    return (choice.label, str(len(results)), _accuracy(results, last), late, *early, theirs)


def _accuracy(results: Sequence[Result], epoch: Callable[[Result], int]) -> str:
    return mean_sd(summary([_percent(result, epoch) for result in results]))


def _percent(result: Result, epoch: Callable[[Result], int]) -> float:
    return 100 * float(result["history"]["validation_accuracy"][epoch(result)])


def _when(results: Sequence[Result], epoch: Callable[[Result], int]) -> str:
    return f" ({median(1 + epoch(result) for result in results):.0f})"
