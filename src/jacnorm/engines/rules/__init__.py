"""One rule per layer kind: G, F and Fᵀ of the paper's appendix ("Conversion between operators").

Importing this package fills `RULES`. Batch norm, which also needs care in the other engine, is in
`engines/batchnorm.py`.
"""

from . import activations, affine, arithmetic, dropout, pooling, resampling, shapes  # noqa: F401
from .table import RULES, NoRule, Rule

__all__ = ["RULES", "NoRule", "Rule"]
