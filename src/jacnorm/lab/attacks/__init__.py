"""ℓ∞ attacks on networks that take pixels in [0, 1]; each draws from the generator it is given."""

from .apgd import apgd_ce, apgd_targeted
from .gradient import perturbed, pgd, tpgd
from .losses import loss_gradient
from .square import square

__all__ = ["apgd_ce", "apgd_targeted", "loss_gradient", "perturbed", "pgd", "square", "tpgd"]
