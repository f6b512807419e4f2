"""A file in results/: what every reader of one looks at first."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from .checkpoint import write_atomically
from .errors import UsageError

VERSION = 1  # a file that names none is of version 1


class ResultError(UsageError):
    """A file in results/ that cannot be used; the message names it."""


class CutShortError(ResultError):
    """The file ends too early, or is no result at all: it may be made again."""


class NewerVersionError(ResultError):
    """Written by a newer jacnorm: not ours to read or to replace."""


def read_result(path: Path, needs: tuple[str, ...] = ("id", "config")) -> dict[str, Any]:
    """The content of a result file, or an error that says what is wrong with it."""
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise CutShortError(f"{path}: cut short or not JSON ({error})") from error
    except OSError as error:
        raise ResultError(f"{path}: cannot be read ({error.strerror})") from error
    if not isinstance(content, dict):
        raise CutShortError(f"{path}: not a result, it holds a {type(content).__name__}")
    version = content.get("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise NewerVersionError(
            f"{path}: of version {version}, this jacnorm reads up to {VERSION}; a newer one wrote it"
        )
    if missing := [name for name in needs if name not in content]:
        raise CutShortError(f"{path}: has no {missing[0]!r}, so it is not whole")
    return content


def validation_loss(result: dict[str, Any]) -> float:
    """At the end: what the paper chooses settings by. A run that diverged is as bad as can be."""
    return math.inf if has_diverged(result) else float(result["history"]["validation_loss"][-1])


def has_diverged(result: dict[str, Any]) -> bool:
    """Such a run has no numbers of the test split; `diverged` says what happened."""
    return result["test"] is None


def write_record(path: Path, content: dict[str, Any]) -> None:
    """As JSON that a person can review: six digits, a list of numbers on one line."""
    text = json.dumps({"version": VERSION, **short(content)}, indent=1, ensure_ascii=False)
    text = re.sub(r"\[\n[^][{}]*?\]", lambda found: _one_line(found[0]), text)
    write_atomically(path, (text + "\n").encode())


def short(value: Any) -> Any:
    """Six digits are more than any of these numbers is good for."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: short(inner) for name, inner in value.items()}
    return [short(inner) for inner in value] if isinstance(value, list | tuple) else value


def _one_line(numbers: str) -> str:
    return re.sub(r"\s*\n\s*", " ", numbers).replace("[ ", "[").replace(" ]", "]")
