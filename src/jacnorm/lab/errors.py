"""Mistakes of a command's user, as against runs that fail: they end with exit code 2."""

from ..errors import JacnormError


class UsageError(JacnormError):
    """What was asked for does not exist or makes no sense; the message says what to do."""


class DataError(UsageError):
    """A data set that is missing, unreadable or not what it should be."""


class EvaluationError(UsageError):
    """Images, labels or options that cannot be evaluated as asked."""
