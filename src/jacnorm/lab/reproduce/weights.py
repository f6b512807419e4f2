"""Accuracy and σ for each λ that a method was tried with, and the largest λ that does no harm."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ..config import TOLD_BY_THE_LABEL
from ..settings import Settings
from ..statistics import LEVEL, TINY
from ..wording import NOTHING, count, mean_sd, plain, signed
from .chapter import Table
from .runs import Runs

NONE = "none"
OWN = {"method", "weight", "seed", *TOLD_BY_THE_LABEL}


def by_weight(runs: Runs) -> pd.DataFrame | None:
    """A row for each λ of each method that was tried with several; None if there is no such method.

    Only the stage that tries all λ counts. The other settings are those chosen for the method, so that
    nothing but λ differs. The row of λ = 0 is no regularizer at these settings. `last` is the accuracy on the
    images that settings are chosen by, since a λ is chosen here. `chance` is how far below the reference the
    mean may be by chance.
    """
    first = runs.first_stage
    rows: list[dict[str, Any]] = []
    for label, chosen in runs.choices["setting"].items():
        like = _like(first, first["config"][first["setting"] == chosen].iloc[0])
        mine, bare = like[like["method"] == label], like[like["method"] == NONE]
        if label != NONE and mine["weight"].nunique() > 1:
            found = _rows(label, dict(list(mine.groupby("weight"))), bare)
            if first["done"].all():
                _mark(found[1:])
            rows += found
    return pd.DataFrame(rows) if rows else None


def _like(runs: pd.DataFrame, config: Settings) -> pd.DataFrame:
    """Those that differ in method, λ and seed alone, and in what only one of the two methods looks at."""
    wanted = {name: value for name, value in config.relevant().items() if name not in OWN}
    alike = [
        all(other.relevant().get(name, value) == value for name, value in wanted.items())
        for other in runs["config"]
    ]
    return runs[alike]


def _rows(label: str, by: dict[float, pd.DataFrame], bare: pd.DataFrame) -> list[dict[str, Any]]:
    """The first is the reference: no regularizer if it is there, else the smallest λ."""
    if not _ended(bare).empty:
        by = {0.0: bare, **by}
    reference = _ended(by[min(by)])
    return [_row(label, weight, of, reference) for weight, of in by.items()]


def _ended(of: pd.DataFrame) -> pd.DataFrame:
    return of[of["done"] & ~of["diverged"]]


def _row(label: str, weight: float, of: pd.DataFrame, reference: pd.DataFrame) -> dict[str, Any]:
    ended = _ended(of)
    row = {"method": label, "weight": weight, "n": len(ended), "seeds": len(of), "marked": False}
    for name in ("last", "sigma"):
        row |= {name: ended[name].mean(), f"{name}_sd": ended[name].std()}
    row["difference"] = row["last"] - reference["last"].mean()
    row["chance"] = by_chance(reference["last"], len(ended))
    return row


def by_chance(reference: pd.Series, n: int) -> float:
    """How far below these the mean of n networks like them is by chance, in 19 of 20 cases at most.

    The spread is that of the reference alone (Student's t). A λ that ruins one seed of three has a large
    spread of its own, and would be excused by it. One network shows no spread: NaN.
    """
    m = len(reference)
    if m < 2 or n < 1:
        return math.nan
    from scipy import stats

    return float(stats.t.ppf(LEVEL, m - 1) * reference.std() * math.sqrt(1 / m + 1 / n))


def _mark(rows: list[dict[str, Any]]) -> None:
    """The largest λ of one method that does no harm; not one at which a seed diverged."""
    harmless = [row for row in rows if row["n"] == row["seeds"] and does_no_harm(row)]
    if harmless:
        harmless[-1]["marked"] = True


def does_no_harm(row: dict[str, Any]) -> bool:
    return bool(row["difference"] >= -(0.0 if math.isnan(row["chance"]) else row["chance"]) - TINY)


def weight_table(found: pd.DataFrame, runs: Runs, images: str) -> Table:
    """`images` says which ones the accuracy is of."""
    largest = found.groupby("method")["weight"].transform("max")
    at_edge = found["marked"] & (found["weight"] == largest)
    rows = [_cells(row, edge) for row, edge in zip(found.to_dict("records"), at_edge, strict=True)]
    header = ("method", "λ", "n", "accuracy", "σ", "difference", "chance")[: None if _is_known(found) else -1]
    marked = [i for i, is_marked in enumerate(found["marked"]) if is_marked]
    starred = " †: the largest λ tried. A larger one may do no harm either." * bool(at_edge.any())
    return Table(
        caption=_caption(found, runs, images) + starred,
        header=header,
        rows=tuple(row[: len(header)] for row in rows),
        best=frozenset((i, j) for i in marked for j in range(len(header))),
        bold=_bold(found),
    )


def _cells(row: dict[str, Any], at_edge: bool) -> tuple[str, ...]:
    n = f"{row['n']}" if row["n"] == row["seeds"] else f"{row['n']} of {row['seeds']}"
    measured = mean_sd(row["last"], row["last_sd"]), mean_sd(row["sigma"], row["sigma_sd"])
    compared = (NOTHING, NOTHING) if row["weight"] == 0 else (signed(row["difference"]), plain(row["chance"]))
    return row["method"], f"{row['weight']:g}" + " †" * at_edge, n, *measured, *compared


def _is_known(found: pd.DataFrame) -> bool:
    """What chance can do, for any λ."""
    return bool(found["chance"].notna().any())


def _against(found: pd.DataFrame) -> str:
    smallest = found.groupby("method")["weight"].min()
    if (smallest == 0).all():
        return "no regularizer"
    return "the smallest λ" if (smallest > 0).all() else "no regularizer, or else the smallest λ"


def _caption(found: pd.DataFrame, runs: Runs, images: str) -> str:
    of, lengths = _against(found), runs.first_stage["epochs"].unique()
    after = f", after {count(int(lengths[0]), 'epoch')}" if len(lengths) == 1 else ""
    without = " λ = 0 is no regularizer, with the same settings." * bool((found["weight"] == 0).any())
    told = (
        f"What each λ does{after}: accuracy on {images} in percent and measured σ, mean ± standard deviation "
        f"over n seeds. The other settings of a method are those chosen for it.{without} Difference: from "
        f"the accuracy of {of}."
    )
    if _is_known(found):
        told += (
            " Chance: how far below that a mean of n seeds may lie by chance (95 %), judged by the spread of "
            f"{of} over its seeds. Harm that is smaller goes unseen."
        )
    if not runs.first_stage["done"].all():
        return f"{told} No λ is marked while runs are to come."
    return told + " No λ is marked: every one does harm." * (not found["marked"].any())


def _bold(found: pd.DataFrame) -> str:
    of = _against(found)
    if not _is_known(found):
        return (
            f"the largest λ of each method that is at least as accurate as {of}. There is one seed, so how "
            "much of that is chance cannot be told"
        )
    return (
        f"the largest λ of each method that does no harm: it is not further below {of} than chance explains"
    )
