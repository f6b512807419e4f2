"""Every error jacnorm raises on purpose is a JacnormError that says what was found and what to do.

Warnings point at the line of the user's that led to them.
"""

import os
import sys
import warnings

import torch

OURS = tuple(os.path.dirname(file) + os.sep for file in (__file__, torch.__file__))


def warn(message: str) -> None:
    """At the innermost line that is neither ours nor PyTorch's, which calls modules and hooks."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


class JacnormError(Exception):
    """Base of all errors of this package."""


class InputError(JacnormError, ValueError):
    """The input of a call has the wrong shape, dtype or value."""


class CoupledSamplesError(JacnormError):
    """One sample's output depends on another sample's input, so there is no Jacobian per sample."""


class NonFiniteError(JacnormError, ArithmeticError):
    """The model produced NaN or inf."""


class UnsupportedModelError(JacnormError):
    """The model does something that the engine asked for cannot linearize."""


class ModelError(JacnormError, RuntimeError):
    """The model itself failed on the input it was given."""
