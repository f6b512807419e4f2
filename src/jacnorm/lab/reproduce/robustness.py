"""Figure 3: accuracy against noise and attacks, and what stronger attacks than the paper's leave of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..evaluate.adversarial import ATTACKS, EPSILON, QUERIES, STEPS, adversarial
from ..evaluate.judge import judge
from ..evaluate.noise import VARIANCES, white_noise
from ..evaluate.record import alarms
from .chapter import POINTS, Groups, Quantities, Table
from .numbers import mean_sd
from .statistics import summary
from .subject import Bench, Network

WORST = tuple(f"{name}-worst" for name in ATTACKS)
UNITS = dict.fromkeys(("noise", *ATTACKS, *WORST, "judge"), POINTS)
TITLES = {"noise": "noise", "pgd": "PGD", "tpgd": "TPGD", "square": "Square"}


@dataclass(frozen=True)
class Robustness:
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

    methods = None
    is_portable = True
    needs_rivals = False
    units = UNITS

    def kinds(self, network: Network) -> dict[str, dict[str, Any]]:
        common = {"images": self.images, "epsilon": self.epsilon}
        found: dict[str, dict[str, Any]] = {
            "noise": {"images": self.images, "variances": self.variances},
            "pgd": {**common, "iterations": self.steps},
            "tpgd": {**common, "iterations": self.steps},
            "square": {**common, "iterations": self.queries},
        }
        if self.judge_images:
            found["judge"] = {"images": self.judge_images, "epsilon": self.epsilon}
        return found

    def measure(self, kind: str, network: Network, bench: Bench) -> dict[str, Any]:
        model = bench.model(network.config)
        if kind == "noise":
            return {kind: white_noise(model, bench.test(self.images), variances=self.variances).to_json()}
        if kind == "judge":
            split = bench.test(self.judge_images)
            return {kind: judge(model, split, epsilon=self.epsilon / 255).to_json()}
        strengths = self.queries if kind == "square" else self.steps
        found = adversarial(
            model, bench.test(self.images), kind, epsilons=(self.epsilon / 255,), iterations=strengths
        )
        return {"attacks": {kind: found.to_json()}}

    def notes(self, groups: Groups) -> tuple[str, ...]:
        ball = f"attacks in the ℓ∞ ball of ε = {self.epsilon:g}/255, steps of 2/255, all in pixels."
        strong = (
            " The judge counts an image as lost if one of four attacks finds a way, AutoAttack's recipe; on "
            f"{self.judge_images} images."
            if self.judge_images
            else ""
        )
        return (f"Measured on the first {self.images} test images; {ball}{strong}", *self._masked(groups))

    def _masked(self, groups: Groups) -> tuple[str, ...]:
        """A network whose loss has no gradient to speak of only seems to be robust."""
        counts = {
            label: sum(bool(alarms({**record, "images": self.images})) for record in records)
            for label, records in groups.items()
        }
        found = [f"{n} of {len(groups[label])} networks of “{label}”" for label, n in counts.items() if n]
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

    def quantities(self, groups: Groups) -> Quantities:
        found = {"noise": _values(groups, lambda r: _noise_fall(r["noise"]))}
        for name in ATTACKS:
            found[name] = _values(groups, lambda r, name=name: _attack_fall(r["attacks"][name]))
        for name in ATTACKS:
            found[f"{name}-worst"] = _values(groups, lambda r, name=name: _left(r["attacks"][name]))
        if self.judge_images:
            found["judge"] = _values(groups, lambda r: 100 * r["judge"]["robust"][-1])
        return found

    def tables(self, groups: Groups) -> tuple[Table, ...]:
        found = self.quantities(groups)
        strengths = (
            f"variance {_span(self.variances)}, {_span(self.steps)} steps, {_span(self.queries)} queries"
        )
        left = {f"{name}-worst": TITLES[name] for name in ATTACKS}
        left |= {"judge": "judge"} if self.judge_images else {}
        return (
            _table(
                f"Change in accuracy in points, on average over the strengths ({strengths}), the last "
                "iterate as in the paper; mean ± standard deviation over n networks. Claims about noise, "
                "PGD, TPGD and Square are about these.",
                TITLES,
                found,
                groups,
            ),
            _table(
                "Accuracy in percent that the greatest strength leaves, an image lost once any iterate fools "
                f"the network: what to judge a network by.{self._of_fewer_images}",
                left,
                found,
                groups,
            ),
        )


def _table(caption: str, columns: dict[str, str], found: Quantities, groups: Groups) -> Table:
    of = {label: [summary(list(found[key][label].values())) for key in columns] for label in groups}
    rows = [(label, str(len(groups[label])), *map(mean_sd, summaries)) for label, summaries in of.items()]
    means = [[one.mean for one in summaries] for summaries in of.values()]
    header = ("method", "n", *columns.values())
    return Table(caption, header, tuple(rows), _highest(means, first=2), "the highest mean of each column")


def _highest(means: Sequence[Sequence[float]], first: int) -> frozenset[tuple[int, int]]:
    """The cells of the highest in each column, the leftmost of which is the table's column `first`. Where
    all are alike, none stands out.

    >>> sorted(_highest([[1.0, 0.0, 2.0], [3.0, 0.0, 2.0], [2.0, 0.0, 1.0]], first=2))
    [(0, 4), (1, 2), (1, 4)]
    """
    columns = list(enumerate(zip(*means, strict=True), start=first))
    return frozenset(
        (i, j) for j, column in columns for i, m in enumerate(column) if m == max(column) > min(column)
    )


def _values(groups: Groups, value: Any) -> dict[str, dict[int, float]]:
    return {label: {r["config"]["seed"]: value(r) for r in records} for label, records in groups.items()}


def _span(strengths: Sequence[float]) -> str:
    """
    >>> _span((0, 1, 40)), _span((0.0, 0.2))
    ('1 to 40', '0.2')
    """
    found = [f"{s:g}" for s in strengths if s > 0]
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _noise_fall(noise: dict[str, Any]) -> float:
    return -_mean_drop(noise["variances"], noise["drop"])


def _attack_fall(attack: dict[str, Any]) -> float:
    return -_mean_drop(attack["iterations"], [attack["clean"] - left for left in attack["last"][0]])


def _mean_drop(strengths: Sequence[float], drops: Sequence[float]) -> float:
    """In points, over the strengths that are any."""
    return 100 * fmean(drop for s, drop in zip(strengths, drops, strict=True) if s > 0)


def _left(attack: dict[str, Any]) -> float:
    return float(100 * attack["worst"][0][-1])
