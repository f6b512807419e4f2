"""The errors of jacnorm. Each message says what was found and what to do.

Warnings point to the user's line that caused them.
"""

import sys
import warnings

# Packages that call jacnorm for the user: PyTorch calls modules and hooks, trainers call callbacks.
BETWEEN = {
    *("jacnorm", "torch", "contextlib"),
    *("lightning", "pytorch_lightning", "lightning_fabric", "transformers", "accelerate"),
    *("skorch", "stable_baselines3"),
}


def warn(message: str) -> None:
    """Warn at the innermost line outside of jacnorm, PyTorch and trainers: the user's line."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _package(frame.f_globals) in BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _package(module: dict[str, object]) -> str:
    return str(module.get("__name__")).partition(".")[0]


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
