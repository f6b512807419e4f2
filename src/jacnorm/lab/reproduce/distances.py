"""Figure 4: distance to the decision boundary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..claims import Quantities
from ..evaluate.boundary import DIRECTIONS
from ..wording import NOTHING, spread
from .chapter import Table
from .measurement import Measurement, by_seed, sizes
from .runs import Network

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

    def setup(self, kind: str) -> dict[str, Any]:
        return {"images": self.images, "directions": self.directions}

    def kept(self, found: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in found.items() if name != "compared_with"}
        lines = {name: percentiles(found[name]) for name in KINDS}
        return rest | lines | {"points": len(found["points"]), "percentiles": PERCENTILES}

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
        found, n = self.quantities(frame), sizes(frame)
        points = frame["record"].map(lambda record: record["boundary"]["points"])
        spans = points.groupby(frame["method"].astype(object)).agg(span)
        cells = pd.DataFrame({"n": n.astype(str), "points": spans})
        for kind, title in KINDS.items():
            whole = found[kind].count() == n.reindex(found[kind].columns)
            cells[title] = found[kind].apply(spread).where(whole, NOTHING)
        caption = (
            "Median distance to the decision boundary, 2-norm of pixels from 0 to 1, mean ± standard "
            "deviation over n networks."
        )
        return (Table.of(caption, cells.loc[n.index].rename_axis("method")),)


def span(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low}–{high}"


def percentiles(distances: list[float | None]) -> list[float | None]:
    """Not found is far away. Between two points the lower counts: there is no mean with far away."""
    ordered = sorted(distances, key=lambda d: math.inf if d is None else d)
    return [ordered[i * (len(ordered) - 1) // PERCENTILES] for i in range(PERCENTILES + 1)]
