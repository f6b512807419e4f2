"""Models that return more than one tensor: which tensor J is the Jacobian of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from ..errors import InputError

Name = str | int
Output = Name | Callable[[Any], Tensor] | None  # a name, a position, a function; None for the default

LOGITS = "logits"  # the name of the scores in models of Hugging Face


def chosen(result: Any, output: Output, batch: int) -> tuple[Any, Name | None]:
    """The chosen tensor in the result of a model, and its name if it was chosen by default."""
    if output is None:
        return obvious(result, batch)
    if callable(output):
        return output(result), None
    parts = parts_of(result)
    if isinstance(output, int) and not isinstance(output, bool):
        values = list(parts.values())
        if -len(values) <= output < len(values):
            return values[output], None
    elif output in parts:
        return parts[output], None
    near = get_close_matches(str(output), [str(name) for name in parts], 1)
    hint = (
        f"did you mean output={near[0]!r}?"
        if near
        else f"there is {told(parts) or 'nothing to choose from'}."
    )
    raise InputError(f"output={output!r}: the model returned {type(result).__name__}; {hint}")


def obvious(result: Any, batch: int) -> tuple[Any, Name | None]:
    """The default choice: the result itself if it is a tensor, else the logits, else the only tensor with a
    row per sample. Also the name of the choice in the result."""
    if isinstance(result, Tensor):
        return result, None
    parts = parts_of(result)
    rows = [name for name, value in parts.items() if _has_rows(value, batch)]
    name = LOGITS if LOGITS in rows else rows[0] if len(rows) == 1 else None
    if name is None:
        raise InputError(
            f"The model returned {type(result).__name__}{_with(parts)}, and J is the Jacobian of one tensor. "
            f"Say which: {_example(parts, rows)}."
        )
    return parts[name], name


def parts_of(result: Any) -> dict[Name, Any]:
    """The parts of a result by name, or by position in a list or tuple; empty if it has no parts."""
    if isinstance(result, Mapping):
        return dict(result)
    if names := getattr(result, "_fields", None):  # a named tuple
        return {name: getattr(result, name) for name in names}
    if isinstance(result, list | tuple):
        return dict(enumerate(result))
    if is_dataclass(result):
        return {one.name: getattr(result, one.name) for one in fields(result)}
    return dict(getattr(result, "__dict__", {}))


def told(parts: Mapping[Name, Any]) -> str:
    """The tensors among them, with their shapes."""
    shapes = {name: tuple(value.shape) for name, value in parts.items() if isinstance(value, Tensor)}
    return ", ".join(f"{name!r} of shape {shape}" for name, shape in shapes.items())


def _has_rows(value: Any, batch: int) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.shape[:1] == (batch,)


def _with(parts: Mapping[Name, Any]) -> str:
    return f" with {text}" if (text := told(parts)) else ""


def _example(parts: Mapping[Name, Any], rows: list[Name]) -> str:
    if rows:
        return f"output={rows[0]!r}, or a function of the result"
    return "output= takes a name, a position or a function of the result, as output=lambda out: out[0]"
