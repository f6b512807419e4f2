"""How a model is served, and what to beware of: `doctor(model, x)`."""

from .examine import doctor
from .report import Diagnosis

__all__ = ["Diagnosis", "doctor"]
