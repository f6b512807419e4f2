"""Functions that are created in every step, such as lambda x: model(x, t). They are recognized by their code
and by the objects that they hold."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

Value = TypeVar("Value")
MOST = 1024  # functions that are remembered, so that code made by exec() does not fill the memory
DEEP = 4  # how deep to look into functions that hold functions, and objects that hold objects
LARGE = 8  # whole numbers from here on are not axes, but for example the time of a diffusion model
NAMES = (bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def is_made_anew(model: Any) -> bool:
    return isinstance(model, FunctionType | partial)


class ByCode(Generic[Value]):
    """One value per function. Functions with the same code share a value if they hold the same objects
    (modules, instances, functions). Of the tensors and numbers that they hold, only the kind is compared."""

    def __init__(self, make: Callable[[], Value]):
        self._make = make
        self._values: dict[Any, tuple[list[weakref.ref[Any]], Value]] = {}

    def __call__(self, function: Any) -> Value:
        held: list[Any] = []
        key = _look(function, held, DEEP)
        found = self._values.get(key)
        if found is not None and all(ref() is item for ref, item in zip(found[0], held, strict=True)):
            return found[1]
        if len(self._values) >= MOST:
            self._values.clear()
        made = self._make()
        # The key names objects by their ids. When an object is gone, another one may get its id.
        forget = partial(_forget, weakref.ref(self), key)
        self._values[key] = [weakref.ref(item, forget) for item in held], made
        return made

    def __len__(self) -> int:
        return len(self._values)

    def forget(self, key: Any) -> None:
        self._values.pop(key, None)


def _forget(owner: weakref.ref[ByCode[Any]], key: Any, _: Any) -> None:
    if (known := owner()) is not None:
        known.forget(key)


def _look(value: Any, held: list[Any], depth: int) -> Any:
    """A key for a value that a function holds. Objects that are part of the key are added to `held`."""
    if isinstance(value, FunctionType) and depth > 0:
        inside = [_look(item, held, depth - 1) for item in _closed_over(value)]
        return value.__code__, id(value.__globals__), *inside, *_globals(value, held)
    if isinstance(value, partial) and depth > 0:
        given = _look((value.args, value.keywords), held, depth - 1)
        return "partial", _look(value.func, held, depth - 1), given
    if isinstance(value, MethodType):
        return _object(value.__self__, held), getattr(value.__func__, "__code__", None)
    if isinstance(value, tuple | list) and depth > 0:
        return tuple(_look(item, held, depth - 1) for item in value)
    if isinstance(value, dict) and depth > 0:
        return tuple((_plain(name), _look(item, held, depth - 1)) for name, item in value.items())
    return _object(value, held)


def _object(value: Any, held: list[Any]) -> Any:
    if not isinstance(value, Tensor) and (callable(value) or _holds_modules(value, DEEP)):
        try:
            weakref.ref(value)
        except TypeError:
            return type(value)
        held.append(value)
        return id(value)
    return _plain(value)


def _holds_modules(value: Any, depth: int) -> bool:
    """Whether a value holds modules. Two such instances must not share a key."""
    inside = getattr(value, "__dict__", None)
    if depth == 0 or not isinstance(inside, dict) or isinstance(value, Tensor | ModuleType):
        return False
    return any(isinstance(v, nn.Module) or _holds_modules(v, depth - 1) for v in inside.values())


def _plain(value: Any) -> Any:
    is_switch = isinstance(value, NAMES) or (isinstance(value, int) and abs(value) < LARGE)
    return (type(value), value) if is_switch else Tensor if isinstance(value, Tensor) else type(value)


def _closed_over(function: FunctionType) -> Iterator[Any]:
    """The default arguments of a function, and the variables that it takes from enclosing functions."""
    yield function.__defaults__
    yield function.__kwdefaults__
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable has no value yet
            yield None


def _globals(function: FunctionType, held: list[Any]) -> Iterator[Any]:
    around = function.__globals__
    for name in _names(function.__code__):
        if name in around and not isinstance(around[name], ModuleType):
            yield _object(around[name], held)


def _names(code: CodeType) -> Iterator[str]:
    """The names in the code, and in the code inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
