"""The one error of this package."""

from ..errors import UsageError


class DataError(UsageError):
    """A data set that is missing, unreadable or not what it should be."""
