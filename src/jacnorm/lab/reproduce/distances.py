"""Figure 4: distance to the decision boundary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..evaluate.boundary import DIRECTIONS, boundary
from ..wording import NOTHING, spread
from .chapter import Quantities, Table
from .measurement import Measurement, by_seed, sizes
from .networks import Bench, Network

KINDS = {"sampled": "random directions", "attack": "minimum-norm attack", "first_order": "first order"}
PERCENTILES = 100  # kept of each distribution, 0th to 100th: thousands of points are no result file


@dataclass(frozen=True)
class Distances(Measurement):
    """Quantities: sampled, attack, first_order: a network's median distance, 2-norm of pixels from 0 to 1.
    There is none when half of its points have no boundary in reach.
    """

    images: int = 1000
    directions: int = DIRECTIONS

    needs_rivals = True
    units = dict.fromkeys(KINDS, "in 2-norm")

    def kinds(self, network: Network) -> dict[str, dict[str, Any]]:
        compared = sorted(rival.id for rival in network.rivals)
        settings = {"images": self.images, "directions": self.directions, "compared_with": compared}
        return {"boundary": settings}

    def measure(self, kind: str, network: Network, bench: Bench) -> dict[str, Any]:
        found = boundary(
            bench.model(network.config),
            bench.test(self.images),
            compared_with=[bench.model(rival) for rival in network.rivals],
            directions=self.directions,
        ).to_json()
        found |= {name: percentiles(found[name]) for name in KINDS}
        return {kind: found | {"points": len(found["points"]), "percentiles": PERCENTILES}}

    def notes(self, frame: pd.DataFrame) -> tuple[str, ...]:
        return (
            f"For each seed, points are those of the first {self.images} test images that the networks of "
            f"all methods classify correctly. “Random directions” is the paper's way, here {self.directions} "
            "of them; it can only be too long. The attack's distance is an upper bound too, and a closer "
            "one. “First order” is the margin between two logits over the norm of its gradient.",
        )

    def quantities(self, frame: pd.DataFrame) -> Quantities:
        medians = {kind: [r["boundary"][kind][PERCENTILES // 2] for r in frame["record"]] for kind in KINDS}
        return {kind: by_seed(frame, values) for kind, values in medians.items()}

    def tables(self, frame: pd.DataFrame) -> tuple[Table, ...]:
        found = self.quantities(frame)
        rows = []
        for label, n in sizes(frame).items():
            points = [r["boundary"]["points"] for r in frame["record"][frame["method"] == label]]
            low, high = min(points), max(points)
            medians = [found[kind][label] for kind in KINDS]
            shown = (spread(of) if of.count() == n else NOTHING for of in medians)
            rows.append((label, str(n), f"{low}" if low == high else f"{low}–{high}", *shown))
        caption = (
            "Median distance to the decision boundary, 2-norm of pixels from 0 to 1, mean ± standard "
            "deviation over n networks."
        )
        return (Table(caption, ("method", "n", "points", *KINDS.values()), tuple(rows)),)


def percentiles(distances: list[float | None]) -> list[float | None]:
    """Not found is far away. Between two points the lower counts: there is no mean with far away."""
    ordered = sorted(distances, key=lambda d: math.inf if d is None else d)
    return [ordered[i * (len(ordered) - 1) // PERCENTILES] for i in range(PERCENTILES + 1)]
