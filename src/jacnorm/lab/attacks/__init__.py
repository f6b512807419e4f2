"""ℓ∞ attacks on networks that take pixels in [0, 1]. Each draws from the generator that it is given."""

from .apgd import apgd_ce, apgd_targeted
from .gradient import perturbed, pgd, tpgd
from .losses import loss_gradient
from .square import square

__all__ = ["apgd_ce", "apgd_targeted", "loss_gradient", "perturbed", "pgd", "square", "tpgd"]
