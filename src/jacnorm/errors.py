"""The errors of jacnorm. Each message says what was found and what to do."""


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
