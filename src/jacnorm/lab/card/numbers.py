"""Numbers as a card writes them."""

from __future__ import annotations

from ..evaluate.common import wilson


def number(value: float) -> str:
    """Three digits.

    >>> number(5.1234), number(0.01234), number(12345.6), number(0), number(-2), number(1e-9)
    ('5.12', '0.0123', '12,300', '0', '−2.00', '1.00e−09')
    """
    rounded = float(f"{value:.3g}")
    if rounded == 0 or abs(rounded) >= 100:
        return f"{rounded:,.0f}".replace("-", "−")
    return f"{rounded:#.3g}".replace("-", "−")


def percent(part: float) -> str:
    """
    >>> percent(0.9634), percent(0.0), percent(1.0)
    ('96.3 %', '0 %', '100 %')
    """
    return f"{100 * part:.1f}".removesuffix(".0") + " %"


def interval(part: float, count: int) -> str:
    """
    >>> interval(0.9, 100)
    '83 to 94 %'
    """
    low, high = wilson(part, count)
    digits = 0 if high - low > 0.03 else 1
    return f"{100 * low:.{digits}f} to {100 * high:.{digits}f} %"
