"""Figures 3 to 5 of the paper: what each measures, and its tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ..claims import Quantities
from ..evaluate.adversarial import ATTACKS, EPSILON, QUERIES, STEPS
from ..evaluate.boundary import DIRECTIONS
from ..evaluate.estimation import BOUND_IMAGES, ITERATIONS
from ..evaluate.noise import VARIANCES
from ..evaluate.record import alarms
from ..evaluate.times import BATCH_SIZES, KINDS, REPEATS
from ..wording import NOTHING, spread
from .chapter import POINTS, Table
from .measurement import Measurement, by_seed, means_of, sizes

WORST = tuple(f"{name}-worst" for name in ATTACKS)
PERTURBED = {"noise": "noise", "pgd": "PGD", "tpgd": "TPGD", "square": "Square"}
DISTANCES = {"sampled": "random directions", "attack": "minimum-norm attack", "first_order": "first order"}
PERCENTILES = 100  # kept of each distribution, 0th to 100th: thousands of points are no result file
ROUGH = 1 / 3  # a standard deviation of more than this part of the mean: no time to quote
# An estimate, the networks that the paper (or common sense) measures it on, and its name in the table.
ESTIMATES = {
    "random": ("spectral", "spectral"),
    "warm": ("spectral-warm", "spectral-warm"),
    "lanczos": ("spectral", "Lanczos"),
    "bound": ("spectral-bound", "spectral-bound: product of norms"),
}


@dataclass(frozen=True)
class Robustness(Measurement):
    """Figure 3: accuracy against noise and attacks, and what stronger attacks than the paper's leave of it.

    Quantities: noise, pgd, tpgd, square: accuracy less clean accuracy, in points, on average over the
    strengths, last iterates, so that a whole curve of the paper's counts and not its end, where little may
    be left of any network; pgd-worst …: the accuracy that the greatest strength leaves, every iterate
    counted; judge: the accuracy that four strong attacks leave.
    """

    images: int = 1000
    variances: tuple[float, ...] = VARIANCES
    epsilon: float = 255 * EPSILON  # of 255
    steps: tuple[int, ...] = STEPS
    queries: tuple[int, ...] = QUERIES
    judge_images: int = 0  # none: it costs as much as all the rest

    units = dict.fromkeys(("noise", *ATTACKS, *WORST, "judge"), POINTS)

    def settings(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {"noise": {"images": self.images, "variances": self.variances}}
        for attack in ATTACKS:
            strengths = self.queries if attack == "square" else self.steps
            found[attack] = {"images": self.images, "epsilon": self.epsilon, "iterations": strengths}
        if self.judge_images:
            found["judge"] = {"images": self.judge_images, "epsilon": self.epsilon}
        return found

    def notes(self, frame: pd.DataFrame) -> tuple[str, ...]:
        told = (
            f"Measured on the first {self.images} test images; attacks in the ℓ∞ ball of ε = "
            f"{self.epsilon:g}/255, steps of 2/255, all in pixels."
        )
        if self.judge_images:
            told += (
                " The judge counts an image as lost if one of four attacks finds a way, AutoAttack's recipe; "
                f"on {self.judge_images} images."
            )
        return (told, *self._masked(frame))

    def _masked(self, frame: pd.DataFrame) -> tuple[str, ...]:
        """A network whose loss has no gradient to speak of only seems to be robust."""
        is_masked = frame["record"].map(lambda record: bool(alarms({**record, "images": self.images})))
        masked, n = sizes(frame[is_masked.astype(bool)]), sizes(frame)
        found = [f"{some} of {n[label]} networks of “{label}”" for label, some in masked.items()]
        if not found:
            return ()
        return (
            f"Beware: in {', '.join(found)} gradients may be masked, so that PGD and TPGD tell too much "
            "robustness: an attack that uses no gradient finds more than those that do, or the loss has no "
            "gradient at some of the images.",
        )

    def quantities(self, frame: pd.DataFrame) -> Quantities:
        records = frame["record"]
        found = {"noise": [-_mean_drop(r["noise"]["variances"], r["noise"]["drop"]) for r in records]}
        for name in ATTACKS:
            attacks = [r["attacks"][name] for r in records]
            found[name] = [-_mean_drop(a["iterations"], a["clean"] - np.array(a["last"][0])) for a in attacks]
            found[f"{name}-worst"] = [100 * a["worst"][0][-1] for a in attacks]
        if self.judge_images:
            found["judge"] = [100 * r["judge"]["robust"][-1] for r in records]
        return {name: by_seed(frame, values) for name, values in found.items()}

    def tables(self, frame: pd.DataFrame) -> tuple[Table, ...]:
        found = self.quantities(frame)
        strengths = (
            f"variance {_span(self.variances)}, {_span(self.steps)} steps, {_span(self.queries)} queries"
        )
        change = (
            f"Change in accuracy in points, on average over the strengths ({strengths}), the last iterate as "
            "in the paper; mean ± standard deviation over n networks. Claims about noise, PGD, TPGD and "
            "Square are about these."
        )
        left = (
            "Accuracy in percent that the greatest strength leaves, an image lost once any iterate fools the "
            "network: what to judge a network by."
        )
        if 0 < self.judge_images < self.images:
            left += (
                f" The judge's is of the first {self.judge_images} images, with a standard error of up to "
                f"{50 / math.sqrt(self.judge_images):.1f} points for their choice; the others' of "
                f"{self.images}."
            )
        worst = {f"{name}-worst": PERTURBED[name] for name in ATTACKS}
        worst |= {"judge": "judge"} if self.judge_images else {}
        return _ranked(change, PERTURBED, found, frame), _ranked(left, worst, found, frame)


@dataclass(frozen=True)
class Distances(Measurement):
    """Figure 4: distance to the decision boundary.

    Quantities: sampled, attack, first_order: a network's median distance, 2-norm of pixels from 0 to 1.
    There is none when half of its points have no boundary in reach.
    """

    images: int = 1000
    directions: int = DIRECTIONS

    needs_rivals = True
    units = dict.fromkeys(DISTANCES, "in 2-norm")

    def settings(self) -> dict[str, dict[str, Any]]:
        return {"boundary": {"images": self.images, "directions": self.directions}}

    def kept(self, found: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in found.items() if name != "compared_with"}
        lines = {name: percentiles(found[name]) for name in DISTANCES}
        return rest | lines | {"points": len(found["points"]), "percentiles": PERCENTILES}

    def notes(self, frame: pd.DataFrame) -> tuple[str, ...]:
        return (
            f"For each seed, points are those of the first {self.images} test images that the networks of "
            f"all methods classify correctly. “Random directions” is the paper's way, here {self.directions} "
            "of them; it can only be too long. The attack's distance is an upper bound too, and a closer "
            "one. “First order” is the margin between two logits over the norm of its gradient.",
        )

    def quantities(self, frame: pd.DataFrame) -> Quantities:
        parts = [record["boundary"] for record in frame["record"]]
        return {kind: by_seed(frame, [part[kind][PERCENTILES // 2] for part in parts]) for kind in DISTANCES}

    def tables(self, frame: pd.DataFrame) -> tuple[Table, ...]:
        found, n = self.quantities(frame), sizes(frame)
        points = frame["record"].map(lambda record: record["boundary"]["points"])
        cells = means_of(DISTANCES, found, n)
        for kind, title in DISTANCES.items():
            cells[title] = cells[title].where(found[kind].count() == n, NOTHING)
        ranges = points.groupby(frame["method"].astype(object)).agg(["min", "max"])
        cells.insert(
            1, "points", [f"{a}" if a == b else f"{a}–{b}" for a, b in ranges.loc[n.index].to_numpy()]
        )
        caption = (
            "Median distance to the decision boundary, 2-norm of pixels from 0 to 1, mean ± standard "
            "deviation over n networks."
        )
        return (Table.of(caption, cells),)


@dataclass(frozen=True)
class TimeAndError(Measurement):
    """Figure 5: what the penalties cost, and how far their σ is from the exact one.

    Quantities: time: a step of each of KINDS at the largest batch, plain step = 1; error: mean of
    |estimate − σ|/σ after a round of power iteration from a random or a stored vector, or of Lanczos, and of
    the product of norms. random-round-beside-stored is on the networks of stored-round.
    """

    images: int = 1000
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    repeats: int = REPEATS
    rounds: tuple[int, ...] = ITERATIONS
    methods: tuple[str, ...] = ("spectral-bound", "spectral", "spectral-warm")

    units: ClassVar = {"time": "plain steps", "error": "in relative error of σ"}
    is_portable = False

    def settings(self) -> dict[str, dict[str, Any]]:
        names = ("images", "batch_sizes", "repeats", "rounds")
        return {"cost": {name: getattr(self, name) for name in names}}

    def notes(self, frame: pd.DataFrame) -> tuple[str, ...]:
        return (
            f"Times are medians of {self.repeats} rounds in which every kind ran once, as ratios to a plain "
            "step, all on one machine, whose noise their spread is. “spectral” starts at random, and "
            "“analytic-svd” takes a backward pass an output and an SVD, both as in the paper.",
            f"Errors are means over {self.images} train images, the bound's over {BOUND_IMAGES}. The bound's "
            "is on networks trained with Spectral-Bound, power iteration's on networks trained with "
            "Spectral, as in the paper.",
        )

    def quantities(self, frame: pd.DataFrame) -> Quantities:
        errors = {name: self._errors(frame, name, method) for name, (method, _) in ESTIMATES.items()}
        found = {
            "random-round": errors["random"][0],
            "last-random-round": errors["random"][len(self.rounds) - 1],
            "stored-round": errors["warm"][0],
            "random-round-beside-stored": self._errors(frame, "random", "spectral-warm")[0],
            "lanczos-round": errors["lanczos"][0],
            "product-of-norms": errors["bound"][0],
        }
        times = {kind: [of[kind][-1] for of in _ratios(frame)] for kind in KINDS}
        return {"time": pd.DataFrame(times, dtype=float), "error": pd.DataFrame(found)}

    def tables(self, frame: pd.DataFrame) -> tuple[Table, ...]:
        batches, found = frame["record"].iloc[0]["cost"]["times"]["batch_sizes"], _ratios(frame)
        ratios = {kind: pd.DataFrame([of[kind] for of in found], columns=batches) for kind in KINDS}
        times = pd.DataFrame({kind: of.apply(spread) for kind, of in ratios.items()}).T
        time = (
            "Time of an optimizer step by batch size, plain step = 1, mean ± standard deviation over "
            f"{len(frame)} networks."
        )
        if any((of.std() > ROUGH * of.mean()).any() for of in ratios.values()):
            time += (
                " Beware: some of these spread by more than a third of their mean. The machine was busy, or "
                "the network is too small to time."
            )
        rows = {text: self._cells(frame, name, method) for name, (method, text) in ESTIMATES.items()}
        errors = pd.DataFrame(rows).T
        error = "Mean relative error of σ in percent, by rounds of power iteration."
        return Table.of(time, times.rename_axis("step")), Table.of(error, errors.rename_axis("estimate"))

    def _cells(self, frame: pd.DataFrame, name: str, method: str) -> pd.Series:
        of = 100 * self._errors(frame, name, method).set_axis(list(self.rounds), axis=1)
        if of.iloc[:, 0].isna().any():
            return pd.Series(NOTHING, index=of.columns)
        return of.apply(spread, digits=0 if name == "bound" else 1)

    def _errors(self, frame: pd.DataFrame, name: str, method: str) -> pd.DataFrame:
        """Of the networks of a method: a row for each seed, a column for each round (one for the product).

        Some networks have no such estimate: those that are not piecewise linear have no bound.
        """
        mine = frame[frame["method"] == method]
        rows = [np.atleast_1d(record["cost"]["estimation"][name]) for record in mine["record"]]
        return pd.DataFrame(rows, index=mine["seed"], dtype=float).reindex(columns=range(len(self.rounds)))


def _ratios(frame: pd.DataFrame) -> list[dict[str, list[float]]]:
    """Of each network: by kind, by batch size."""
    return [record["cost"]["times"]["ratio"] for record in frame["record"]]


def _ranked(caption: str, columns: dict[str, str], found: Quantities, frame: pd.DataFrame) -> Table:
    """The highest mean of each column stands out, unless all are alike."""
    n = sizes(frame)
    means = pd.DataFrame({name: found[name].mean() for name in columns}).loc[n.index]
    highest = (means == means.max()) & (means.max() > means.min())
    best = frozenset((int(i), int(j) + 2) for i, j in np.argwhere(highest.to_numpy()))
    cells = means_of(columns, found, n)
    return Table.of(caption, cells, best=best, bold="the highest mean of each column")


def _span(strengths: Sequence[float]) -> str:
    """
    >>> _span((0, 1, 40)), _span((0.0, 0.2))
    ('1 to 40', '0.2')
    """
    found = [f"{s:g}" for s in strengths if s > 0]
    return " to ".join(dict.fromkeys((found[0], found[-1])))


def _mean_drop(strengths: Sequence[float], drops: Any) -> float:
    """In points, over the strengths that are any."""
    return float(100 * np.mean(np.array(drops)[np.array(strengths) > 0]))


def percentiles(distances: list[float | None]) -> list[float | None]:
    """Not found is far away. Between two points the lower counts: there is no mean with far away."""
    ordered = sorted(distances, key=lambda d: math.inf if d is None else d)
    return [ordered[i * (len(ordered) - 1) // PERCENTILES] for i in range(PERCENTILES + 1)]
