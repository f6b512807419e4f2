"""Figure 3: accuracy against noise and attacks, and what stronger attacks than the paper's leave of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..evaluate.adversarial import ATTACKS, EPSILON, QUERIES, STEPS, adversarial
from ..evaluate.judge import judge
from ..evaluate.noise import VARIANCES, white_noise
from .claims import POINTS, Quantities
from .numbers import mean_sd
from .section import Groups, Table
from .statistics import summary
from .subject import Bench, Network

UNITS = {
    **dict.fromkeys(ATTACKS, f"{POINTS} (last iterate)"),
    **{f"{name}-worst": f"{POINTS} (every iterate)" for name in ATTACKS},
    "noise": POINTS,
    "judge": POINTS,
}
TITLES = {"noise": "noise", "pgd": "PGD", "tpgd": "TPGD", "square": "Square"}


@dataclass(frozen=True)
class Robustness:
    """Quantities: noise, pgd, tpgd, square: accuracy less clean accuracy, in points, at the greatest
    strength; pgd-worst … the same with every iterate counted; judge: the accuracy four strong attacks leave.
    """

    images: int = 1000
    variances: tuple[float, ...] = VARIANCES
    epsilon: float = 255 * EPSILON  # of 255
    steps: tuple[int, ...] = STEPS
    queries: tuple[int, ...] = QUERIES
    judge_images: int = 0  # none: it costs as much as all the rest

    methods = None
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

    def notes(self) -> tuple[str, ...]:
        ball = f"attacks in the ℓ∞ ball of ε = {self.epsilon:g}/255, steps of 2/255, all in pixels."
        strong = (
            f" The judge is the worst of four attacks of AutoAttack's grade, on {self.judge_images} images."
            if self.judge_images
            else ""
        )
        return (f"Measured on the first {self.images} test images; {ball}{strong}",)

    def quantities(self, groups: Groups) -> Quantities:
        found = {
            "noise": _values(groups, lambda r: -100 * r["noise"]["drop"][-1]),
        }
        for name in ATTACKS:
            found[name] = _values(groups, lambda r, name=name: _fall(r, name, "last"))
        for name in ATTACKS:
            found[f"{name}-worst"] = _values(groups, lambda r, name=name: _fall(r, name, "worst"))
        if self.judge_images:
            found["judge"] = _values(groups, lambda r: 100 * r["judge"]["robust"][-1])
        return found

    def tables(self, groups: Groups) -> tuple[Table, ...]:
        found = self.quantities(groups)
        strength = {
            "noise": f"variance {self.variances[-1]:g}",
            "pgd": f"{self.steps[-1]} steps",
            "tpgd": f"{self.steps[-1]} steps",
            "square": f"{self.queries[-1]} queries",
        }
        paper = {name: f"{TITLES[name]}, {strength[name]}" for name in TITLES}
        stronger = {f"{name}-worst": f"{TITLES[name]}, worst so far" for name in ATTACKS}
        stronger |= {"judge": "judge: accuracy left"} if self.judge_images else {}
        judged = "; for the judge, the percent of images that stand all its attacks" * bool(self.judge_images)
        points = "Accuracy less clean accuracy in points, mean ± standard deviation over n networks"
        return (
            _table(f"{points}; the last iterate, as in the paper.", paper, found, groups),
            _table(
                f"The same, an image lost once any iterate fools the network{judged}. These are the numbers "
                "to judge by.",
                stronger,
                found,
                groups,
            ),
        )


def _table(caption: str, columns: dict[str, str], found: Quantities, groups: Groups) -> Table:
    rows = [
        (label, str(len(records)), *(mean_sd(summary(list(found[key][label].values()))) for key in columns))
        for label, records in groups.items()
    ]
    return Table(caption, ("method", "n", *columns.values()), tuple(rows))


def _values(groups: Groups, value: Any) -> dict[str, dict[int, float]]:
    return {label: {r["config"]["seed"]: value(r) for r in records} for label, records in groups.items()}


def _fall(record: dict[str, Any], name: str, measure: str) -> float:
    attack = record["attacks"][name]
    return float(100 * (attack[measure][-1][-1] - attack["clean"]))
