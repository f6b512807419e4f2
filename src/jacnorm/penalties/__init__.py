"""Penalties: each takes a Linearization and returns a scalar to add to the loss. Stored vectors live here."""

from .analytic import AnalyticPenalty
from .base import Penalty
from .frobenius import FrobeniusPenalty
from .gradient import GradientPenalty
from .margin import MarginPenalty
from .norm import NormPenalty
from .singular_values import InducedPenalty, NuclearBoundPenalty, SchattenPenalty
from .spectral import SpectralPenalty
from .spectral_bound import SpectralBoundPenalty, product_bound
from .square_maps import SpectralRadiusPenalty, TracePenalty
from .suggest import Suggestion, suggest_weight
from .weight_decay import WeightDecay

__all__ = [
    "AnalyticPenalty",
    "FrobeniusPenalty",
    "GradientPenalty",
    "InducedPenalty",
    "MarginPenalty",
    "NormPenalty",
    "NuclearBoundPenalty",
    "Penalty",
    "SchattenPenalty",
    "SpectralBoundPenalty",
    "SpectralPenalty",
    "SpectralRadiusPenalty",
    "Suggestion",
    "TracePenalty",
    "WeightDecay",
    "product_bound",
    "suggest_weight",
]
