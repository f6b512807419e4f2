"""Figure 3: accuracy against noise and attacks, and what stronger attacks than the paper's leave of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..claims import Quantities
from ..evaluate.adversarial import ATTACKS, EPSILON, QUERIES, STEPS
from ..evaluate.noise import VARIANCES
from ..evaluate.record import alarms
from ..wording import spread
from .chapter import POINTS, Table
from .measurement import Measurement, by_seed, sizes
from .runs import Network

WORST = tuple(f"{name}-worst" for name in ATTACKS)
TITLES = {"noise": "noise", "pgd": "PGD", "tpgd": "TPGD", "square": "Square"}


@dataclass(frozen=True)
class Robustness(Measurement):
    """Quantities: noise, pgd, tpgd, square: accuracy less clean accuracy, in points, on average over the
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

    def _strengths(self, attack: str) -> tuple[int, ...]:
        return self.queries if attack == "square" else self.steps

    def kinds(self, network: Network) -> dict[str, dict[str, Any]]:
        common = {"images": self.images, "epsilon": self.epsilon}
        found: dict[str, dict[str, Any]] = {"noise": {"images": self.images, "variances": self.variances}}
        found |= {attack: {**common, "iterations": self._strengths(attack)} for attack in ATTACKS}
        if self.judge_images:
            found["judge"] = {"images": self.judge_images, "epsilon": self.epsilon}
        return found

    def setup(self, kind: str) -> dict[str, Any]:
        return {
            "images": self.judge_images if kind == "judge" else self.images,
            "variances": self.variances,
            "attacks": (kind,),
            "epsilon": self.epsilon / 255,
            "strengths": {kind: self._strengths(kind)},
        }

    def notes(self, frame: pd.DataFrame) -> tuple[str, ...]:
        ball = f"attacks in the ℓ∞ ball of ε = {self.epsilon:g}/255, steps of 2/255, all in pixels."
        strong = (
            " The judge counts an image as lost if one of four attacks finds a way, AutoAttack's recipe; on "
            f"{self.judge_images} images."
            if self.judge_images
            else ""
        )
        return (f"Measured on the first {self.images} test images; {ball}{strong}", *self._masked(frame))

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

    @property
    def _of_fewer_images(self) -> str:
        if not 0 < self.judge_images < self.images:
            return ""
        error = 50 / math.sqrt(self.judge_images)
        return (
            f" The judge's is of the first {self.judge_images} images, with a standard error of up to "
            f"{error:.1f} points for their choice; the others' of {self.images}."
        )

    def quantities(self, frame: pd.DataFrame) -> Quantities:
        records = frame["record"]
        found = {"noise": [-_mean_drop(r["noise"]["variances"], r["noise"]["drop"]) for r in records]}
        for name in ATTACKS:
            found[name] = [_change(r["attacks"][name]) for r in records]
        for name in ATTACKS:
            found[f"{name}-worst"] = [100 * r["attacks"][name]["worst"][0][-1] for r in records]
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
            f"network: what to judge a network by.{self._of_fewer_images}"
        )
        columns = {f"{name}-worst": TITLES[name] for name in ATTACKS}
        columns |= {"judge": "judge"} if self.judge_images else {}
        return _table(change, TITLES, found, frame), _table(left, columns, found, frame)


def _table(caption: str, columns: dict[str, str], found: Quantities, frame: pd.DataFrame) -> Table:
    """The highest mean of each column stands out, unless all are alike."""
    n = sizes(frame)
    cells = pd.DataFrame({title: found[name].apply(spread) for name, title in columns.items()}).loc[n.index]
    means = pd.DataFrame({name: found[name].mean() for name in columns}).loc[n.index]
    highest = (means == means.max()) & (means.max() > means.min())
    best = frozenset((int(i), int(j) + 2) for i, j in np.argwhere(highest.to_numpy()))
    cells.insert(0, "n", n.astype(str))
    return Table.of(caption, cells.rename_axis("method"), best=best, bold="the highest mean of each column")


def _span(strengths: Sequence[float]) -> str:
    """
    >>> _span((0, 1, 40)), _span((0.0, 0.2))
    ('1 to 40', '0.2')
    """
    found = [f"{s:g}" for s in strengths if s > 0]
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _change(attack: dict[str, Any]) -> float:
    return -_mean_drop(attack["iterations"], attack["clean"] - np.array(attack["last"][0]))


def _mean_drop(strengths: Sequence[float], drops: Any) -> float:
    """In points, over the strengths that are any."""
    return float(100 * np.mean(np.array(drops)[np.array(strengths) > 0]))
