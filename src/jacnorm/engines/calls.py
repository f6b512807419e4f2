"""Names of calls. PyTorch has several spellings of one operation, and rules are written for one of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from ..pytorch.tracing import while_tracing

# Calls whose result has no derivative, although it consists of floats.
CONSTANT = frozenset(
    [
        *("detach", "get data", "sign", "sgn", "heaviside", "floor", "ceil", "round", "trunc"),
        *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
        *("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"),
    ]
)
# Calls that query a tensor, or compare tensors. Their results are not real numbers.
ASKING = frozenset(
    [
        *(
            "dim",
            "size",
            "numel",
            "nelement",
            "ndimension",
            "stride",
            "element_size",
            "storage_offset",
            "data_ptr",
        ),
        *(
            "is_contiguous",
            "is_floating_point",
            "is_complex",
            "is_conj",
            "is_neg",
            "is_inference",
            "is_signed",
        ),
        *(
            "__len__",
            "__hash__",
            "__repr__",
            "__bool__",
            "__format__",
            "get_device",
            "register_hook",
            "item",
            "retain_grad",
        ),
        *(
            "get shape",
            "get dtype",
            "get device",
            "get ndim",
            "get requires_grad",
            "get grad_fn",
            "get is_leaf",
        ),
        *("get layout", "get is_cuda", "get is_sparse", "get is_quantized", "get is_meta", "get itemsize"),
        *("get nbytes", "get _version", "get names", "get is_nested", "get _backward_hooks", "get is_cpu"),
        *("eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
        *(
            "isnan",
            "isinf",
            "isfinite",
            "isclose",
            "allclose",
            "equal",
            "argmax",
            "argmin",
            "argsort",
            "any",
            "all",
        ),
        *(
            "result_type",
            "is_tensor",
            "nonzero",
            "count_nonzero",
            "searchsorted",
            "bucketize",
            "is_same_size",
        ),
        *("long", "int", "bool", "short", "byte", "char", "tolist", "is_autocast_enabled", "is_nonzero"),
    ]
)
# Calls that concern only autograd's graph of the loss.
OF_THE_GRAPH = frozenset(["register_hook", "retain_grad", "get grad_fn", "get _backward_hooks"])
HARMLESS = (int, float, bool, str, torch.Size, torch.dtype, torch.device, torch.layout, type(None))
# Calls that are another function if the second argument is a tensor.
OF_TWO = {
    "max": "maximum",
    "min": "minimum",
    **dict.fromkeys(["pow", "__pow__", "float_power"], "power of a tensor"),
}
# The names that functions give to their second argument.
_SECOND = ("other", "mat2", "vec")
_RENAMED = {"axis": "dim", "keepdims": "keepdim"}


def canonical_name(func: Any, args: tuple[Any, ...]) -> tuple[str, bool]:
    """The rule's name for this call, and whether the call writes into its first argument."""
    name, in_place = _name(func)
    if name in OF_TWO and len(args) > 1 and isinstance(args[1], Tensor):
        return OF_TWO[name], in_place
    return name, in_place


@while_tracing
def _name(func: Any) -> tuple[str, bool]:
    return _plain_name(func)


@cache
def _plain_name(func: Any) -> tuple[str, bool]:
    if (own := getattr(func, "own_name", None)) is not None:  # see `engines/own.py`
        return str(own), False
    name = getattr(func, "__name__", type(func).__name__)
    if name == "__get__":
        return f"get {func.__self__.__name__}", False
    if type(func).__module__ == "torch._ops":
        return f"torch.ops.{func}", False
    if name.startswith("__"):
        return name, name == "__setitem__"
    if func is Tensor.unfold:  # not the unfold of torch.nn.functional
        return "Tensor.unfold", False
    if func is torch.instance_norm:  # it has another signature
        return "torch.instance_norm", False
    return name.strip("_"), name.endswith("_")


# Python functions of PyTorch that first offer themselves to an override, and then do their work.
_COMPOSED = ("torch.nn.functional", "torch.functional", "torch._tensor")
OPENED: dict[str, Any] = {}
_HANDING_OVER = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def opened(func: Any) -> Any:
    """The function without that offer, so that the calls inside it are recorded; None if there are none."""
    name = _opened(func)
    return None if name is None else OPENED[name]


@while_tracing
def _opened(func: Any) -> str | None:
    """The name of the function in `OPENED`. (Dynamo follows functions that it finds in such a place.)"""
    if not isinstance(func, FunctionType) or func.__module__ not in _COMPOSED:
        return None
    name = f"{func.__module__}.{func.__qualname__}"
    if name not in OPENED and set(_HANDING_OVER) & set(func.__code__.co_names):
        around = _around(func.__module__)
        # Dynamo decides by the name of a file whether to follow it, and skips some files of PyTorch.
        code = func.__code__.replace(co_filename=f"opened {func.__code__.co_filename}")
        inner = FunctionType(code, around, func.__name__, func.__defaults__, func.__closure__)
        inner.__kwdefaults__ = func.__kwdefaults__
        OPENED[name] = inner
    return name if name in OPENED else None


@cache
def _around(module: str) -> dict[str, Any]:
    """A copy of that module's globals without overrides. Dynamo needs it to be a module of its own."""
    other = ModuleType(f"{__name__}.{module.replace('.', '_')}")
    sys.modules[other.__name__] = other
    names = {**vars(sys.modules[module]), **dict.fromkeys(_HANDING_OVER, _never)}
    vars(other).update({**names, "__name__": other.__name__})
    return vars(other)


def _never(*_: Any) -> bool:
    return False


def one_way(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments with the data first and numpy's names translated."""
    if not kwargs:
        return args, kwargs
    named = {_RENAMED.get(name, name): value for name, value in kwargs.items()}
    if "condition" in named and not args:  # torch.where
        args = (named.pop("condition"), named.pop("input"))
    for key in ("input", "tensors", "self"):
        if not args and key in named:
            args = (named.pop(key),)
    if len(args) == 1:
        args = (*args, *(named.pop(key) for key in _SECOND if key in named))
    elif len(args) == 2 and "other" in named:  # torch.where
        args = (*args, named.pop("other"))
    return args, named


def is_counter(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dim() == 0 and not t.is_floating_point()


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def carries_no_derivative(y: Any) -> bool:
    if isinstance(y, Tensor):
        return not (y.is_floating_point() or y.is_complex())
    if isinstance(y, list | tuple) and not isinstance(y, torch.Size):
        return all(carries_no_derivative(item) for item in y)
    return isinstance(y, HARMLESS)
