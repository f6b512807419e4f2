"""One rule per kind of call. For piecewise linear layers these are G, F and Fᵀ of the paper's appendix
("Conversion between operators").

Importing this package fills `RULES`. Batch norm is in `engines/batchnorm.py`, because it also needs care when
the whole model is one step.
"""

from . import (  # noqa: F401
    activations,
    affine,
    arithmetic,
    attention,
    contractions,
    cumulative,
    dropout,
    fourier,
    moving,
    norms,
    pairs,
    pooling,
    products,
    recurrent,
    resampling,
    scattering,
    shapes,
    smooth,
    softmax,
    special,
)
from .table import MISSING, RULES, Call, NoRule, NotRecorded, OneWay, Rule

__all__ = ["MISSING", "RULES", "Call", "NoRule", "NotRecorded", "OneWay", "Rule"]
