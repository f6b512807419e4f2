"""Mistakes of the user of a command. They end with exit code 2, and failed runs with 1."""

from ..errors import JacnormError


class UsageError(JacnormError):
    """Something that a user named does not exist or makes no sense. The message says what to do."""


class DataError(UsageError):
    """A data set that is missing, unreadable or not what it should be."""


class EvaluationError(UsageError):
    """Images, labels or options that cannot be evaluated as asked."""
