"""Interquartile means and stratified bootstrap intervals (Agarwal et al., 2021), for few runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000
LEVEL = 0.95

Scores = NDArray[np.float64]


def interquartile_mean(scores: Scores) -> float:
    """Of the middle half: a quarter of the values is cut at each end, rounded down, as rliable does.

    >>> interquartile_mean(np.array([0.0, 1, 2, 3, 4, 5, 6, 700]))
    3.5
    """
    if not len(scores):
        return float("nan")
    cut = len(scores) // 4
    return float(np.sort(scores)[cut : len(scores) - cut].mean())


def interval(strata: Sequence[Scores], against: Sequence[Scores] | None = None) -> tuple[float, float]:
    """Of the interquartile mean over all strata, or of its difference to that of others: percentiles over
    draws of runs with replacement, in each stratum by itself. The same each time.
    """
    random = np.random.Generator(np.random.PCG64(0))
    found = _drawn(strata, random)
    if against is not None:
        found = found - _drawn(against, random)
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _drawn(strata: Sequence[Scores], random: np.random.Generator) -> Scores:
    parts = [of[random.integers(len(of), size=(DRAWS, len(of)))] for of in strata if len(of)]
    scores = np.sort(np.concatenate(parts, axis=1), axis=1)
    cut = scores.shape[1] // 4
    return scores[:, cut : scores.shape[1] - cut].mean(1)
