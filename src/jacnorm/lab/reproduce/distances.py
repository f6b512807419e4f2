"""Figure 4: distance to the decision boundary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..evaluate.boundary import DIRECTIONS, boundary
from .chapter import Groups, Quantities, Table
from .numbers import NOTHING, mean_sd
from .statistics import summary
from .subject import Bench, Network

KINDS = {"sampled": "random directions", "attack": "minimum-norm attack", "first_order": "first order"}
PERCENTILES = 100  # kept of each distribution, 0th to 100th: thousands of points are no result file


@dataclass(frozen=True)
class Distances:
    """Quantities: sampled, attack, first_order: a network's median distance, 2-norm of pixels from 0 to 1."""

    images: int = 1000
    directions: int = DIRECTIONS

    methods = None
    is_portable = True
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

    def notes(self, groups: Groups) -> tuple[str, ...]:
        return (
            f"For each seed, points are those of the first {self.images} test images that the networks of "
            f"all methods classify correctly. “Random directions” is the paper's way, here {self.directions} "
            "of them; it can only be too long. The attack's distance is an upper bound too, and a closer "
            "one. “First order” is the margin between two logits over the norm of its gradient.",
        )

    def quantities(self, groups: Groups) -> Quantities:
        return {
            kind: {
                label: {r["config"]["seed"]: m for r in records if (m := _median(r, kind)) is not None}
                for label, records in groups.items()
            }
            for kind in KINDS
        }

    def tables(self, groups: Groups) -> tuple[Table, ...]:
        found = self.quantities(groups)
        rows = []
        for label, records in groups.items():
            points = sorted({r["boundary"]["points"] for r in records})
            shown = str(points[0]) if len(points) == 1 else f"{points[0]}–{points[-1]}"
            medians = [list(found[kind][label].values()) for kind in KINDS]
            whole = (mean_sd(summary(m)) if len(m) == len(records) else NOTHING for m in medians)
            rows.append((label, str(len(records)), shown, *whole))
        return (
            Table(
                "Median distance to the decision boundary, 2-norm of pixels from 0 to 1, mean ± standard "
                "deviation over n networks.",
                ("method", "n", "points", *KINDS.values()),
                tuple(rows),
            ),
        )


def percentiles(distances: list[float | None]) -> list[float | None]:
    """Not found is far away. Between two points the lower counts: there is no mean with far away."""
    ordered = sorted(distances, key=lambda d: math.inf if d is None else d)
    return [ordered[i * (len(ordered) - 1) // PERCENTILES] for i in range(PERCENTILES + 1)]


def _median(record: dict[str, Any], kind: str) -> float | None:
    """None when half of the points have no boundary in reach."""
    middle: float | None = record["boundary"][kind][PERCENTILES // 2]
    return middle
