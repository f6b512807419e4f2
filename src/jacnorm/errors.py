"""The errors of jacnorm. Each message says what was found and what to do.

Warnings point to the user's line that caused them.
"""

import os
import sys
import warnings

import torch

OURS = tuple(os.path.dirname(file) + os.sep for file in (__file__, torch.__file__))


def warn(message: str) -> None:
    """Warn at the innermost line outside of jacnorm and PyTorch (PyTorch calls modules and hooks)."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


class JacnormError(Exception):
    """The base of all errors that jacnorm raises on purpose."""


class InputError(JacnormError, ValueError):
    """An argument has the wrong type, shape, dtype or value."""


class CoupledSamplesError(JacnormError):
    """One sample's output depends on another sample's input, so there is no Jacobian per sample."""


class NonFiniteError(JacnormError, ArithmeticError):
    """The model produced NaN or inf."""


class UnsupportedModelError(JacnormError):
    """The model does something that the chosen engine cannot linearize."""


class ModelError(JacnormError, RuntimeError):
    """The model itself raised an error on this input."""
