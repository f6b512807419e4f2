"""Smooth functions of each number by itself whose derivatives are special functions (see `smooth.py`)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .smooth import elementwise
from .table import Call, NoRule, rule


def _real(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise NoRule(f"a function of {x.dtype} numbers")
    return x


@rule("lgamma", "special_gammaln")
def log_gamma(x: Tensor) -> Call:
    return elementwise(_real(x), torch.digamma, lambda x: torch.polygamma(1, x))


@rule("digamma", "special_digamma", "special_psi")
def digamma(x: Tensor) -> Call:
    return polygamma(0, x)


@rule("erfinv", "special_erfinv", runs=True)
def inverse_error_function(x: Tensor) -> Call:
    """y = erf⁻¹(x) has the slope √π/2 exp(y²)."""
    y = torch.erfinv(_real(x))

    def slope(y: Tensor) -> Tensor:
        return torch.exp(y.square()) * (math.sqrt(math.pi) / 2)

    return elementwise(y, slope, lambda y: 2 * y * slope(y), y=y)


@rule("special_ndtr")
def normal_distribution(x: Tensor) -> Call:
    def density(x: Tensor) -> Tensor:
        return torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)

    return elementwise(_real(x), density, lambda x: -x * density(x))


@rule("logit", "special_logit")
def logit(x: Tensor, eps: float | None = None) -> Call:
    """log x/(1 − x), with x kept between eps and 1 − eps."""
    below, above = (-math.inf, math.inf) if eps is None else (eps, 1 - eps)

    def inside(x: Tensor, value: Tensor) -> Tensor:
        return value if eps is None else value.masked_fill((x < below) | (x > above), 0)

    return elementwise(
        _real(x),
        lambda x: inside(x, 1 / (x * (1 - x))),
        lambda x: inside(x, (2 * x - 1) / (x * (1 - x)).square()),
    )


@rule("sinc", "special_sinc")
def sinc(x: Tensor) -> Call:
    """f = sin z/z with z = πx. f′ and f″ by series near zero, where the formulas lose their digits."""

    def near(z: Tensor, formula: Tensor, *series: float) -> Tensor:
        square, value = z.square(), torch.zeros_like(z)
        for factor in reversed(series):
            value = value * square + factor
        return torch.where(z.abs() < 0.1, value, formula)

    def slope(x: Tensor) -> Tensor:
        z = math.pi * x
        safe = torch.where(z.abs() < 0.1, 1, z)
        formula = (safe.cos() - safe.sin() / safe) / safe
        return math.pi * torch.where(
            z.abs() < 0.1, z * near(z, formula, -1 / 3, 1 / 30, -1 / 840, 1 / 45360), formula
        )

    def bend(x: Tensor) -> Tensor:
        z = math.pi * x
        safe = torch.where(z.abs() < 0.1, 1, z)
        formula = -safe.sin() / safe - 2 * (safe.cos() - safe.sin() / safe) / safe.square()
        return math.pi**2 * near(z, formula, -1 / 3, 1 / 10, -1 / 168, 1 / 6480)

    return elementwise(_real(x), slope, bend)


def polygamma(n: int, x: Tensor) -> Call:
    return elementwise(_real(x), lambda x: torch.polygamma(n + 1, x), lambda x: torch.polygamma(n + 2, x))
