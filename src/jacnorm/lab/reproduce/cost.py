"""Figure 5: what the penalties cost, and how far their σ is from the exact one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from ..claims import Quantities
from ..evaluate.estimation import BOUND_IMAGES, ITERATIONS
from ..evaluate.times import BATCH_SIZES, KINDS, REPEATS
from ..wording import NOTHING, spread
from .chapter import Table
from .measurement import Measurement
from .runs import Network

ROUGH = 1 / 3  # a standard deviation of more than this part of the mean: no time to quote
# An estimate, and the networks that the paper (or common sense) measures it on.
ESTIMATES = {"random": "spectral", "warm": "spectral-warm", "lanczos": "spectral", "bound": "spectral-bound"}
ROWS = {
    "random": "spectral",
    "warm": "spectral-warm",
    "lanczos": "Lanczos",
    "bound": "spectral-bound: product of norms",
}
BEWARE = (
    " Beware: some of these spread by more than a third of their mean. The machine was busy, or the network "
    "is too small to time."
)


@dataclass(frozen=True)
class TimeAndError(Measurement):
    """Quantities: time: a step of each of KINDS at the largest batch, plain step = 1; error: mean of
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

    def kinds(self, network: Network) -> dict[str, dict[str, Any]]:
        settings = {name: getattr(self, name) for name in ("images", "batch_sizes", "repeats", "rounds")}
        return {"cost": settings}

    def setup(self, kind: str) -> dict[str, Any]:
        timing = {"batch_sizes": self.batch_sizes, "repeats": self.repeats, "iterations": self.rounds}
        return {"images": self.images, "timing": timing}

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
        errors = {name: self._errors(frame, name, label) for name, label in ESTIMATES.items()}
        found = {
            "random-round": errors["random"][0],
            "last-random-round": errors["random"][len(self.rounds) - 1],
            "stored-round": errors["warm"][0],
            "random-round-beside-stored": self._errors(frame, "random", ESTIMATES["warm"])[0],
            "lanczos-round": errors["lanczos"][0],
            "product-of-norms": errors["bound"][0],
        }
        times = {kind: [of[kind][-1] for of in _ratios(frame)] for kind in KINDS}
        return {"time": pd.DataFrame(times, dtype=float), "error": pd.DataFrame(found)}

    def tables(self, frame: pd.DataFrame) -> tuple[Table, ...]:
        sizes = frame["record"].iloc[0]["cost"]["times"]["batch_sizes"]
        found = _ratios(frame)
        ratios = {kind: pd.DataFrame([of[kind] for of in found], columns=sizes) for kind in KINDS}
        rough = any((of.std() > ROUGH * of.mean()).any() for of in ratios.values())
        times = pd.DataFrame({kind: of.apply(spread) for kind, of in ratios.items()}).T
        time = (
            "Time of an optimizer step by batch size, plain step = 1, mean ± standard deviation over "
            f"{len(frame)} networks.{BEWARE * rough}"
        )
        errors = pd.DataFrame({text: self._error_cells(frame, name) for name, text in ROWS.items()}).T
        error = "Mean relative error of σ in percent, by rounds of power iteration."
        return Table.of(time, times.rename_axis("step")), Table.of(error, errors.rename_axis("estimate"))

    def _error_cells(self, frame: pd.DataFrame, name: str) -> pd.Series:
        of = 100 * self._errors(frame, name, ESTIMATES[name]).set_axis(list(self.rounds), axis=1)
        if of.iloc[:, 0].isna().any():
            return pd.Series(NOTHING, index=of.columns)
        return of.apply(spread, digits=0 if name == "bound" else 1)

    def _errors(self, frame: pd.DataFrame, name: str, label: str) -> pd.DataFrame:
        """Of the networks of a method: a row for each seed, a column for each round (one for the product).

        Some networks have no such estimate: those that are not piecewise linear have no bound.
        """
        mine = frame[frame["method"] == label]
        found = [record["cost"]["estimation"][name] for record in mine["record"]]
        rows = [error if isinstance(error, list) else [error] for error in found]
        return pd.DataFrame(rows, index=mine["seed"], dtype=float).reindex(columns=range(len(self.rounds)))


def _ratios(frame: pd.DataFrame) -> list[dict[str, list[float]]]:
    """Of each network: by kind, by batch size."""
    return [record["cost"]["times"]["ratio"] for record in frame["record"]]
