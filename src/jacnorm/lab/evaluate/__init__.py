"""Section 4.2 and 4.3: how robust a network is, how far its boundaries are, and what the numbers cost.

Each evaluation is a function of a network on pixels in [0, 1] and a split, and returns plain numbers:

>>> from jacnorm.lab.data import load
>>> from jacnorm.lab.evaluate import white_noise
>>> from jacnorm.lab.nets import MLP, Normalized
>>> data = load("digits")
>>> model = Normalized(MLP((64, 32, 10)), data.mean, data.std)
>>> white_noise(model, data.test, variances=(0.0,)).drop
(0.0,)
"""

from ..errors import EvaluationError
from .adversarial import AttackResult, adversarial
from .boundary import BoundaryResult, boundary
from .calibration import CalibrationResult, calibration
from .estimation import EstimationResult, estimation
from .judge import JudgeResult, judge
from .landscape import LandscapeResult, landscape
from .noise import NoiseResult, white_noise
from .times import TimesResult, step_times

__all__ = [
    "AttackResult",
    "BoundaryResult",
    "CalibrationResult",
    "EstimationResult",
    "EvaluationError",
    "JudgeResult",
    "LandscapeResult",
    "NoiseResult",
    "TimesResult",
    "adversarial",
    "boundary",
    "calibration",
    "estimation",
    "judge",
    "landscape",
    "step_times",
    "white_noise",
]
