"""package.module:factory: a user's own code, called without arguments."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from .errors import UsageError
from .wording import on_one_line


def in_a_line(error: Exception) -> str:
    """The text of an error of the user's code. The type is named if the text alone does not explain it.

    >>> in_a_line(KeyError("x")), in_a_line(ValueError("two\\nlines")), in_a_line(StopIteration())
    ("KeyError: 'x'", 'two lines', 'StopIteration')
    """
    text = on_one_line(error)
    named = isinstance(error, LookupError) or not text
    return f"{type(error).__name__}{': ' * bool(text)}{text}" if named else text


def made_by(name: str, what: str, error: type[UsageError]) -> Any:
    """Import and call the factory. `what` says in words what it should return."""
    module, _, factory = name.partition(":")
    if "" not in sys.path:  # so that a module in the current folder is found, as with python -m
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), factory)()
    except ModuleNotFoundError as no:
        raise error(
            f"{name}: {no}; it is looked for in the current folder ({Path.cwd()}) and where Python finds "
            "modules (PYTHONPATH)"
        ) from no
    except Exception as no:  # a user's code may raise anything
        raise error(
            f"{name}: {in_a_line(no)}; it must name a function that takes nothing and returns {what}"
        ) from no
