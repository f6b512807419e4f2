"""The memory that tensors hold, counted call by call: exact, and the same in every run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import finalize

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Bytes of all tensors that were made since it was entered: `now`, and at `most`.

    Those of `before` do not count, nor does what a kernel needs only while it runs.
    """

    def __init__(self, before: Iterable[Tensor] = ()):
        super().__init__()
        self.now = self.most = 0
        self._living = {t.untyped_storage()._cdata for t in before}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for y in tree_leaves(result):
            if isinstance(y, Tensor):
                self._add(y.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._living:
            return
        self._living.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._living.discard(key)
        self.now -= size
