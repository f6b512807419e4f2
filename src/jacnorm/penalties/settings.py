"""Settings of a penalty, checked whenever they are set: by the constructor, a schedule or hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from ..errors import InputError
from ..trust.checks import check_count

T = TypeVar("T")


class Setting(Generic[T]):
    """An attribute whose value goes through `check(name, value)`, which may return another form of it."""

    def __init__(self, check: Callable[[str, Any], Any]):
        self.check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, penalty: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, penalty: object, owner: type) -> T: ...
    def __get__(self, penalty: object | None, owner: type) -> Setting[T] | T:
        return self if penalty is None else penalty.__dict__[self.name]

    def __set__(self, penalty: object, value: T) -> None:
        form = self.check(self.name, value)
        penalty.__dict__[self.name] = value if form is None else form


def one_of(*values: Any) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if value not in values:
            raise InputError(f"{name}={value!r}: choose one of {', '.join(map(str, values))}.")

    return check


def count_or(word: str) -> Callable[[str, Any], None]:
    """A number of vectors or rounds, or a word such as "all"."""

    def check(name: str, value: Any) -> None:
        if value != word:
            check_count(name, value)

    return check
