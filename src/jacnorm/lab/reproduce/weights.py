"""Accuracy and σ for each λ that a method was tried with, and the largest λ that does no harm."""

from __future__ import annotations

import math

import pandas as pd

from ..config import TOLD_BY_THE_LABEL
from ..settings import Settings
from ..statistics import LEVEL, TINY
from ..wording import NOTHING, count, part_of, plain, signed, spreads
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
    found = []
    for label, chosen in runs.choices["setting"].items():
        like = _like(first, first["config"][first["setting"] == chosen].iloc[0])
        mine, bare = like[like["method"] == label], like[like["method"] == NONE]
        if label == NONE or mine["weight"].nunique() < 2:
            continue
        if len(_ended(bare)) and mine["weight"].min() > 0:
            mine = pd.concat([bare.assign(weight=0.0), mine])
        found.append(_compared(mine).assign(method=label))
        if first["done"].all():
            _mark(found[-1])
    return pd.concat(found, ignore_index=True) if found else None


def _like(runs: pd.DataFrame, config: Settings) -> pd.DataFrame:
    """Those that differ in method, λ and seed alone, and in what only one of the two methods looks at."""
    wanted = {name: value for name, value in config.relevant().items() if name not in OWN}
    alike = [
        all(other.relevant().get(name, value) == value for name, value in wanted.items())
        for other in runs["config"]
    ]
    return runs[alike]


def _ended(of: pd.DataFrame) -> pd.DataFrame:
    return of[of["done"] & ~of["diverged"]]


def _compared(of: pd.DataFrame) -> pd.DataFrame:
    """The reference is the smallest λ: no regularizer, if it is there."""
    ended = _ended(of)
    groups = ended.groupby("weight")[["last", "sigma"]]
    reference = ended["last"][ended["weight"] == of["weight"].min()]
    found = groups.mean().join(groups.std(), rsuffix="_sd").reindex(sorted(of["weight"].unique()))
    found["n"] = groups.size().reindex(found.index, fill_value=0)
    found["seeds"] = of.groupby("weight").size()
    found["difference"] = found["last"] - reference.mean()
    found["chance"] = [by_chance(reference, n) for n in found["n"]]
    return found.assign(marked=False).reset_index()


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


def _mark(found: pd.DataFrame) -> None:
    """The largest λ of one method that does no harm; not one at which a seed diverged, nor the reference."""
    is_harmless = found["difference"] >= -found["chance"].fillna(0.0) - TINY
    harmless = found.index[is_harmless & (found["n"] == found["seeds"])].drop(0, errors="ignore")
    found.loc[harmless[-1:], "marked"] = True


def weight_table(found: pd.DataFrame, runs: Runs, images: str) -> Table:
    """`images` says which ones the accuracy is of."""
    largest = found.groupby("method")["weight"].transform("max")
    at_edge, bare = found["marked"] & (found["weight"] == largest), found["weight"] == 0
    columns = {
        "λ": [f"{weight:g}" + " †" * edge for weight, edge in zip(found["weight"], at_edge, strict=True)],
        "n": list(map(part_of, found["n"], found["seeds"])),
        "accuracy": spreads(found["last"], found["last_sd"]),
        "σ": spreads(found["sigma"], found["sigma_sd"]),
        "difference": found["difference"].map(signed).mask(bare, NOTHING),
    }
    if _is_known(found):
        columns["chance"] = found["chance"].map(plain).mask(bare, NOTHING)
    starred = " †: the largest λ tried. A larger one may do no harm either." * bool(at_edge.any())
    return Table.of(
        _caption(found, runs, images) + starred,
        pd.DataFrame(columns).set_index(found["method"]),
        best=frozenset((i, j) for i in found.index[found["marked"]] for j in range(1 + len(columns))),
        bold=_bold(found),
    )


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
