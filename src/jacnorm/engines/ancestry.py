"""Which tensors depend on x, as autograd sees it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge


class Ancestry:
    """Finds out whether x is an ancestor of a tensor in autograd's graph."""

    def __init__(self, *xs: Tensor, around: Ancestry | None = None):
        """Look for any of `xs`, and for the tensors that `around` looks for."""
        self._origins: set[Any] = {x.grad_fn for x in xs if x.grad_fn is not None}
        if around is not None:
            self._origins |= around._origins
        self._unrelated: set[Any] = set()

    def cut(self, t: Tensor) -> None:
        """Ignore paths through t. Autograd has a path there, but its derivative is zero, as for round()."""
        if t.grad_fn is not None:
            self._unrelated.add(t.grad_fn)

    def has(self, t: Tensor) -> bool:
        if not self._origins or t.grad_fn is None:
            return False
        seen, waiting = set(self._unrelated), list[Any]([t.grad_fn])
        while waiting:
            node = waiting.pop()
            if node in self._origins:
                return True
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [parent for parent, _ in node.next_functions]
        self._unrelated = seen
        return False


STARTS_A_RECORD = "_starts_a_record"  # of a leaf that stands for x while calls are verified


def leaves_of(y: Tensor) -> list[Tensor]:
    """The leaves of y's graph: the tensors that require a gradient and from which y was computed."""
    seen, waiting, found = set[Any](), [y.grad_fn], list[Tensor]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not hasattr(leaf, STARTS_A_RECORD):
            found.append(leaf)
        waiting += [parent for parent, _ in node.next_functions]
    return found


def weights_of(y: Tensor) -> list[Tensor]:
    """The same without the input, which is a leaf, too, where the run was verified."""
    leaves = leaves_of(y)
    return [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)] or leaves


def is_linked(x: Tensor, y: Tensor) -> bool:
    """Whether autograd sees a path from x to y."""
    return bool(_between(x, y))


def custom_functions(x: Tensor, y: Tensor) -> dict[Any, list[Any]]:
    """The user's own autograd functions between x and y, each with its nodes."""
    found: dict[Any, list[Any]] = {}
    for node in _between(x, y):
        if isinstance(node, BackwardCFunction):
            function: Any = getattr(node, "_forward_cls")  # noqa: B009 (mypy does not know it)
            if not function.__module__.startswith("jacnorm."):
                found.setdefault(function, []).append(node)
    return found


def names_between(x: Tensor, y: Tensor) -> tuple[str, ...]:
    """The calls between x and y, as autograd names them."""
    return tuple(node.name() for node in _between(x, y))


def _between(x: Tensor, y: Tensor) -> list[Any]:
    users: dict[Any, list[Any]] = {}
    waiting = [y.grad_fn]
    while waiting:
        node = waiting.pop()
        for parent, _ in () if node is None else node.next_functions:
            if parent not in users:
                waiting.append(parent)
            users.setdefault(parent, []).append(node)
    origin = get_gradient_edge(x).node
    found, waiting = dict.fromkeys(users.get(origin, ())), list(users.get(origin, ()))
    while waiting:
        new = [user for user in users.get(waiting.pop(), ()) if user not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return list(found)
