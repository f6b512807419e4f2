"""Norms and singular values of anything that can be multiplied with: operators in, Estimates out.

Nothing here knows networks, and nothing here is differentiated.
"""

from .estimate import Estimate
from .gram import gram
from .hutchinson import hutchinson
from .lanczos import lanczos
from .measure import frobenius_norm, singular_values, spectral_norm
from .operator import Matrix, Operator, Transposed
from .power import power_iteration

__all__ = [
    "Estimate",
    "Matrix",
    "Operator",
    "Transposed",
    "frobenius_norm",
    "gram",
    "hutchinson",
    "lanczos",
    "power_iteration",
    "singular_values",
    "spectral_norm",
]
