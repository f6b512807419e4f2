"""One rule per kind of call. For piecewise linear layers these are G, F and Fᵀ of the paper's appendix
("Conversion between operators").

Importing this package fills `RULES`. Batch norm, which also needs care where the whole model is one step, is
in `engines/batchnorm.py`.
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
