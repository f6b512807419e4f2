"""Numbers as they are printed."""

from __future__ import annotations

from ..wording import count as count
from .statistics import Difference, Summary

NOTHING = "–"


def signed(value: float, digits: int = 2) -> str:
    """
    >>> signed(-0.104), signed(-0.001), signed(2.5, 1)
    ('−0.10', '+0.00', '+2.5')
    """
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")  # + 0.0: no −0.00


def plain(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def mean_sd(found: Summary | None, digits: int = 2) -> str:
    """
    >>> mean_sd(Summary(5, 96.613, 0.141)), mean_sd(Summary(1, 96.6, None)), mean_sd(None)
    ('96.61 ± 0.14', '96.60', '–')
    """
    if found is None:
        return NOTHING
    sd = "" if found.sd is None else f" ± {found.sd:.{digits}f}"
    return plain(found.mean, digits) + sd


def interval(d: Difference, unit: str = "") -> str:
    """
    >>> interval(Difference(5, 0.2, 0.1, 0.3, 0.004), "pixels")
    '+0.20 [+0.10, +0.30] pixels'
    >>> interval(Difference(2, 0.2, 0.2, 0.2, 0.5), "pixels")
    '+0.20 pixels in every seed'
    """
    if d.low == d.high:
        return f"{signed(d.mean)} {unit}".rstrip() + " in every seed"
    return f"{signed(d.mean)} [{signed(d.low)}, {signed(d.high)}] {unit}".rstrip()


def probability(p: float) -> str:
    """
    >>> probability(0.0421), probability(0.00001)
    ('p = 0.042', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
