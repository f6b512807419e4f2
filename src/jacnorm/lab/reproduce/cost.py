"""Figure 5: what the penalties cost, and how far their σ is from the exact one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..evaluate.estimation import BOUND_IMAGES, ITERATIONS
from ..evaluate.stored import cost, stored_vectors
from ..evaluate.times import BATCH_SIZES, KINDS, REPEATS
from .chapter import Groups, Quantities, Table
from .numbers import NOTHING, mean_sd
from .statistics import summary
from .subject import Bench, Network

UNITS = {"time": "plain steps", "error": "in relative error of σ"}
ROUGH = 1 / 3  # a standard deviation of more than this part of the mean: no time to quote
# An estimate, and the networks that the paper (or common sense) measures it on.
ESTIMATES = {"random": "spectral", "warm": "spectral-warm", "lanczos": "spectral", "bound": "spectral-bound"}
ROWS = {
    "random": "spectral, random start",
    "warm": "spectral-warm, stored start",
    "lanczos": "Lanczos",
    "bound": "spectral-bound: product of norms",
}


@dataclass(frozen=True)
class TimeAndError:
    """Quantities: time: a step of each of KINDS at the largest batch, plain step = 1; error: mean of
    |estimate − σ|/σ after a round of power iteration from a random or a stored vector, or of Lanczos, and of
    the product of norms. random-round-beside-stored is on the networks of stored-round.
    """

    images: int = 1000
    batch_sizes: tuple[int, ...] = BATCH_SIZES
    repeats: int = REPEATS
    rounds: tuple[int, ...] = ITERATIONS
    methods: tuple[str, ...] = ("spectral-bound", "spectral", "spectral-warm")

    units = UNITS
    is_portable = False
    needs_rivals = False

    def kinds(self, network: Network) -> dict[str, dict[str, Any]]:
        return {
            "cost": {
                "images": self.images,
                "batch_sizes": self.batch_sizes,
                "repeats": self.repeats,
                "rounds": self.rounds,
            }
        }

    def measure(self, kind: str, network: Network, bench: Bench) -> dict[str, Any]:
        config = network.config
        found = cost(
            config,
            bench.model(config),
            bench.data,
            self.images,
            vectors=stored_vectors(bench.folder(config), config),
            batch_sizes=self.batch_sizes,
            repeats=self.repeats,
            iterations=self.rounds,
        )
        return {kind: found}

    def notes(self, groups: Groups) -> tuple[str, ...]:
        return (
            f"Times are medians of {self.repeats} rounds in which every kind ran once, as ratios to a plain "
            "step, all on one machine, whose noise their spread is. “spectral” starts at random, and "
            "“analytic-svd” takes a backward pass an output and an SVD, both as in the paper.",
            f"Errors are means over {self.images} train images, the bound's over {BOUND_IMAGES}. The bound's "
            "is on networks trained with Spectral-Bound, power iteration's on networks trained with "
            "Spectral, as in the paper.",
        )

    def quantities(self, groups: Groups) -> Quantities:
        times = {
            kind: {r["id"]: r["cost"]["times"]["ratio"][kind][-1] for r in _all(groups)} for kind in KINDS
        }
        records = {name: groups.get(label, []) for name, label in ESTIMATES.items()}
        errors = {
            "random-round": _errors(records["random"], "random"),
            "last-random-round": _errors(records["random"], "random", -1),
            "stored-round": _errors(records["warm"], "warm"),
            "random-round-beside-stored": _errors(records["warm"], "random"),
            "lanczos-round": _errors(records["lanczos"], "lanczos"),
            "product-of-norms": _errors(records["bound"], "bound"),
        }
        return {"time": times, "error": errors}

    def tables(self, groups: Groups) -> tuple[Table, ...]:
        sizes = _all(groups)[0]["cost"]["times"]["batch_sizes"]
        times = [
            (kind, *(mean_sd(summary(_ratios(groups, kind, i))) for i in range(len(sizes)))) for kind in KINDS
        ]
        rounds = range(len(self.rounds))
        errors = [(text, *(_error(groups, name, i) for i in rounds)) for name, text in ROWS.items()]
        n = len(_all(groups))
        return (
            Table(
                "Time of an optimizer step by batch size, plain step = 1, mean ± standard deviation over "
                f"{n} networks.{_caveat(groups, len(sizes))}",
                ("step", *map(str, sizes)),
                tuple(times),
            ),
            Table(
                "Mean relative error of σ in percent, by rounds of power iteration.",
                ("estimate", *map(str, self.rounds)),
                tuple(errors),
            ),
        )


def _caveat(groups: Groups, sizes: int) -> str:
    found = [summary(_ratios(groups, kind, i)) for kind in KINDS for i in range(sizes)]
    if not any(one.sd is not None and one.sd > ROUGH * one.mean for one in found):
        return ""
    return (
        " Beware: some of these spread by more than a third of their mean. The machine was busy, or the "
        "network is too small to time."
    )


def _all(groups: Groups) -> list[dict[str, Any]]:
    return [record for records in groups.values() for record in records]


def _ratios(groups: Groups, kind: str, i: int) -> list[float]:
    return [record["cost"]["times"]["ratio"][kind][i] for record in _all(groups)]


def _errors(records: list[dict[str, Any]], name: str, i: int = 0) -> dict[int, float]:
    """By seed; without networks that have no such estimate, as those not piecewise linear have no bound."""
    found = {r["config"]["seed"]: r["cost"]["estimation"][name] for r in records}
    return {s: e[i] if isinstance(e, list) else e for s, e in found.items() if e is not None}


def _error(groups: Groups, name: str, i: int) -> str:
    found = [r["cost"]["estimation"][name] for r in groups.get(ESTIMATES[name], [])]
    if not found or any(part is None for part in found):
        return NOTHING
    if name == "bound":
        return mean_sd(summary([100 * part for part in found]), 0) if i == 0 else NOTHING
    return mean_sd(summary([100 * part[i] for part in found]), 1)
