"""Norms and singular values of linear operators. They need only the products J v and Jᵀu.

This package knows nothing about networks, and its results carry no gradient.
"""

from .eigen import Eigenpairs, eigenpairs
from .estimate import Estimate
from .gram import gram
from .hutchinson import hutchinson
from .induced import InducedNorm, induced_norm
from .lanczos import lanczos
from .measure import frobenius_norm, singular_values, spectral_norm
from .operator import Matrix, Operator, Transposed
from .power import power_iteration
from .vectors import SingularVectors, singular_vectors

__all__ = [
    "Eigenpairs",
    "Estimate",
    "InducedNorm",
    "Matrix",
    "Operator",
    "SingularVectors",
    "Transposed",
    "eigenpairs",
    "frobenius_norm",
    "gram",
    "hutchinson",
    "induced_norm",
    "lanczos",
    "power_iteration",
    "singular_values",
    "singular_vectors",
    "spectral_norm",
]
