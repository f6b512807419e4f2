"""Measure and regularize the Jacobian of neural networks.

    import jacnorm as jn

    penalty = jn.SpectralPenalty(weight=0.01)
    J = jn.linearize(model, x)                  # runs the model once; J.output is model(x)
    loss = F.cross_entropy(J.output, y) + penalty(J)

After "Exact Spectral Norm Regularization for Neural Networks" (Johansson, Engsner, Strannegård, Mostad).
"""

from .diagnosis import Diagnosis, doctor
from .engines.own import rule
from .engines.rules import Call
from .errors import (
    CoupledSamplesError,
    InputError,
    JacnormError,
    ModelError,
    NonFiniteError,
    UnsupportedModelError,
)
from .estimators import (
    Estimate,
    InducedNorm,
    SingularVectors,
    frobenius_norm,
    induced_norm,
    singular_values,
    singular_vectors,
    spectral_norm,
)
from .extras import card
from .from_graph import jacobian_of
from .linearization import Linearization
from .lipschitz import local_lipschitz
from .penalties import (
    AnalyticPenalty,
    FrobeniusPenalty,
    GradientPenalty,
    InducedPenalty,
    MarginPenalty,
    NormPenalty,
    NuclearBoundPenalty,
    Penalty,
    SchattenPenalty,
    SpectralBoundPenalty,
    SpectralPenalty,
    SpectralRadiusPenalty,
    Suggestion,
    TracePenalty,
    WeightDecay,
    product_bound,
    suggest_weight,
)
from .recording import linearize

__version__ = "0.2.0"

__all__ = [
    "AnalyticPenalty",
    "Call",
    "CoupledSamplesError",
    "Diagnosis",
    "Estimate",
    "FrobeniusPenalty",
    "GradientPenalty",
    "InducedNorm",
    "InducedPenalty",
    "InputError",
    "JacnormError",
    "Linearization",
    "MarginPenalty",
    "ModelError",
    "NonFiniteError",
    "NormPenalty",
    "NuclearBoundPenalty",
    "Penalty",
    "SchattenPenalty",
    "SingularVectors",
    "SpectralBoundPenalty",
    "SpectralPenalty",
    "SpectralRadiusPenalty",
    "Suggestion",
    "TracePenalty",
    "UnsupportedModelError",
    "WeightDecay",
    "__version__",
    "card",
    "doctor",
    "frobenius_norm",
    "induced_norm",
    "jacobian_of",
    "linearize",
    "local_lipschitz",
    "product_bound",
    "rule",
    "singular_values",
    "singular_vectors",
    "spectral_norm",
    "suggest_weight",
]
