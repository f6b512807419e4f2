"""Which tensors depend on x, as autograd sees it."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class Ancestry:
    """Whether x is among the ancestors of a tensor in autograd's graph (where there is one)."""

    def __init__(self, x: Tensor):
        self._origin = x.grad_fn
        self._unrelated: set[Any] = set()

    def cut(self, t: Tensor) -> None:
        """Nothing passes through t: autograd has a way there, as through round(), but of zeros alone."""
        if t.grad_fn is not None:
            self._unrelated.add(t.grad_fn)

    def has(self, t: Tensor) -> bool:
        if self._origin is None or t.grad_fn is None:
            return False
        seen, waiting = set(self._unrelated), list[Any]([t.grad_fn])
        while waiting:
            node = waiting.pop()
            if node is self._origin:
                return True
            if node is not None and node not in seen:
                seen.add(node)
                waiting += [parent for parent, _ in node.next_functions]
        self._unrelated = seen
        return False
