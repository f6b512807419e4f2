"""Every error jacnorm raises on purpose is a JacnormError that says what was found and what to do."""


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
