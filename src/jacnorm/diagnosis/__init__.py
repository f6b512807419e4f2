"""`doctor(model, x)`: how jacnorm handles a model, what it costs, and what to watch out for."""

from .examine import doctor
from .report import Diagnosis

__all__ = ["Diagnosis", "doctor"]
