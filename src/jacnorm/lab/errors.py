"""Errors for mistakes of users. A command then ends with exit code 2. A failed run ends with 1."""

from ..errors import JacnormError


class UsageError(JacnormError):
    """Something that a user named does not exist or makes no sense. The message says what to do."""


class DataError(UsageError):
    """A data set is missing, unreadable or unusable."""


class EvaluationError(UsageError):
    """Images, labels or options that cannot be evaluated as asked."""
