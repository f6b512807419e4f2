"""The memory that tensors hold, counted call by call: exact, and the same in every run."""

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Live(TorchDispatchMode):
    """Bytes of all tensors that were made since it was entered: now, and at most.

    What a kernel needs only while it runs does not count.
    """

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for t in tree_iter(result):
            if isinstance(t, Tensor):
                self._count(t.untyped_storage())
        return result

    def _count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def gone(_):
            del self._known[key]
            self.now -= size

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)
