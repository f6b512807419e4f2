"""Sections 4.2 and 4.3: robustness of a network, distance to its boundaries, and the cost of penalties.

Each evaluation takes a network on pixels in [0, 1] and a split, and returns plain numbers:

>>> from jacnorm.lab.data import load
>>> from jacnorm.lab.evaluate import white_noise
>>> from jacnorm.lab.nets import MLP, Normalized
>>> data = load("digits")
>>> model = Normalized(MLP((64, 32, 10)), data.mean, data.std)
>>> white_noise(model, data.test, variances=(0.0,)).drop
(0.0,)
"""

from ..errors import EvaluationError
from .adversarial import adversarial
from .boundary import boundary
from .character import calibration, landscape
from .estimation import estimation
from .judge import judge
from .noise import white_noise
from .times import step_times

__all__ = [
    "EvaluationError",
    "adversarial",
    "boundary",
    "calibration",
    "estimation",
    "judge",
    "landscape",
    "step_times",
    "white_noise",
]
