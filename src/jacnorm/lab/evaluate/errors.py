"""The one error of this room."""

from ..errors import UsageError


class EvaluationError(UsageError):
    """Images, labels or options that cannot be evaluated as asked."""
