"""What is not as in the paper, and why."""

from __future__ import annotations

from collections.abc import Sequence

from ..reproduce.catalog import Item
from ..sweep.experiment import Experiment

# (what the paper has, what is here, why)
Deviation = tuple[str, str, str]

ALWAYS: tuple[Deviation, ...] = (
    (
        "Algorithm 1 as printed",
        "v unit; u = Jv/‖Jv‖; σ ≈ ‖Jᵀu‖, one round",
        "As printed it does not tend to σ, and never feeds u back into v.",
    ),
    (
        "The gradient passes through the iteration",
        "u is held fixed, and one product is differentiated",
        "At the top singular pair the gradient is the same (envelope theorem), and it costs less. One random "
        "round is not there yet; there its gradient is closer to the exact one's than that through the "
        "iteration (docs/benchmarks), so “spectral” here may be a little better than the paper's.",
    ),
    (
        "Power iteration starts at random",
        "“spectral” does; “spectral-warm”, which is ours, goes on from each image's last vector",
        "Ten numbers an image make the estimate converge over the epochs.",
    ),
    (
        "Spectral-Bound takes one power iteration; whether each step begins anew is not said",
        "It goes on from the last step's vectors",
        "So do Yoshida & Miyato, whose method it is. Its norms are nearly exact, where a random start's "
        "would be too small.",
    ),
    (
        "‖Wˡ‖ of a convolution is not spelled out",
        "Its norm as an operator on its real input size",
        "The kernel reshaped to a matrix, which Yoshida & Miyato use, is no bound. It is a check of ours "
        "(check-kernel-kmnist).",
    ),
    (
        "Weight decay is not spelled out",
        "λ/2 · ‖θ‖²",
        "As in Krogh & Hertz and in PyTorch's optimizers.",
    ),
    (
        "“Validation set”",
        "The test split under the protocol “paper”; a part of the train split under “held-out”",
        "The paper also says “test accuracy” and has no third set, so it seems to choose and report on the "
        "same images. Every table names its protocol.",
    ),
    (
        "Standard deviation over five runs, kind unknown",
        "With n − 1",
        "It is the usual one for a sample. If the paper divides by n, with n − 1 its numbers would be 12 % "
        "larger.",
    ),
    (
        "Initial weights, and which epoch counts, are not said",
        "PyTorch's defaults; the last epoch, with others in a table beside it",
        "It is what a script does that says nothing of them.",
    ),
)

BY_FIGURE: dict[int, tuple[Deviation, ...]] = {
    3: (
        (
            "Attacks by torchattacks on all test images",
            "The same attacks written anew and tested against it; noise and attacks on fewer images",
            "torchattacks needs old packages. The last iterate is not always the worst, so that is told too.",
        ),
        (
            "Curves; no strengths or accuracies in numbers",
            "Strengths of ours; claims are about the mean over them",
            "“Consistently” is said of whole curves, and at the end little may be left of any network.",
        ),
    ),
    4: (
        (
            "One network of each method, all 10,000 images, directions not counted",
            "All seeds of each method, fewer images",
            "A claim about methods needs more than one network of each.",
        ),
        (
            "Space and clipping not said; “on average”",
            "Pixels from 0 to 1, not clipped; medians, of points that spectral-warm classifies correctly too",
            "A mean would hang on the points whose boundary is not found.",
        ),
    ),
    5: (
        (
            "Seconds on a K80 GPU; errors over all train images",
            "Ratios to a plain step on one machine; errors over some train images",
            "Ratios carry over between machines better than seconds.",
        ),
        (
            "Data set not said",
            "KMNIST",
            "It is the first of the two that LeNet is trained on.",
        ),
    ),
}
VGG16: Deviation = (
    "VGG16 as listed: eleven convolutions and four pools",
    "Thirteen convolutions with batch norm, five pools, a (512, 10) head",
    "The list does not lead to its own head.",
)


def deviations(items: Sequence[Item]) -> list[Deviation]:
    """Those that concern these tables and figures."""
    if not items:
        return []
    found = [*_screening(items), *ALWAYS]
    for number in sorted({item.figure.figure for item in items if item.figure is not None}):
        found += [(f"Figure {number}: {paper}", here, why) for paper, here, why in BY_FIGURE[number]]
    return found + ([VGG16] if any(run.net == "vgg16" for item in items for run in item.table.runs) else [])


def _screening(items: Sequence[Item]) -> list[Deviation]:
    tables = {item.table.title: item.table for item in items if item.table.screening_epochs is not None}
    if not tables:
        return []
    names = [f"{title}: {_work(table):.0%}".replace("%", " %") for title, table in tables.items()]
    return [
        (
            "Every setting of the grid in full, with five seeds",
            "Two-stage screening: all settings briefly with one seed, the best of each method in full "
            f"({'; '.join(names)} of the work)",
            "To be done in time. It ranks settings by their loss after a few epochs with one seed, where the "
            "next best is often within chance, and some overfit later: the tables of settings show both. The "
            "whole grid's choice may be another.",
        )
    ]


def _work(table: Experiment) -> float:
    """Epochs of both stages, as a part of those of the whole grid."""
    first = table.screening_runs()
    second = table.chosen_runs({run.id: 0.0 for run in first})  # as many, whichever are chosen
    return sum(run.epochs for run in (*first, *second)) / sum(run.epochs for run in table.runs)
