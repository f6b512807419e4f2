"""Penalties: a Linearization in, a scalar to add to the loss out. Warm-start state lives here."""

from .analytic import AnalyticPenalty
from .base import Penalty
from .frobenius import FrobeniusPenalty
from .spectral import SpectralPenalty
from .spectral_bound import SpectralBoundPenalty, product_bound
from .weight_decay import WeightDecay

__all__ = [
    "AnalyticPenalty",
    "FrobeniusPenalty",
    "Penalty",
    "SpectralBoundPenalty",
    "SpectralPenalty",
    "WeightDecay",
    "product_bound",
]
