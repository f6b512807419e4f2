"""The recorder under torch.compile: it runs while dynamo traces, and leaves only tensor calls behind."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor

from ..errors import UnsupportedModelError
from ..tracing import while_tracing
from .recorder import Recorder
from .tape import Plan, Slot


class TracedRecorder(Recorder):
    """Dynamo follows a TorchFunctionMode, but not weak references, versions, and the random state.

    They guard against models that the layerwise engine cannot take, and a model comes here only after an
    eager run has verified it.
    """

    def __init__(self, **options: Any):
        super().__init__(gate=None, **options)
        self._known: dict[Tensor, Slot] = {}  # by identity: nothing is freed while dynamo traces

    def begin(self, x: Tensor) -> None:
        self._source = self._register(x)

    def _unchanged(self, sources: Any, y: Tensor) -> bool:
        return False  # an identity more is no harm

    def _register(self, y: Tensor) -> Slot:
        slot = len(self._dtypes)
        self._dtypes.append(y.dtype)
        self._known[y] = slot
        return slot

    def _slot(self, t: Any) -> Slot | None:
        return self._known.get(t) if isinstance(t, Tensor) else None

    def _depends(self, values: Any) -> bool:
        for value in values.values() if type(values) is dict else values:
            if self._slot(value) is not None:
                return True
            if type(value) in (list, tuple, dict) and self._depends(value):
                return True
        return False


@while_tracing
def check_plan(eager: Plan, traced: Plan) -> None:
    """Dynamo shows most calls to a TorchFunctionMode, but not all. What an eager run saw tells."""
    if eager == traced:
        return
    missing = Counter(name for name, _ in eager) - Counter(name for name, _ in traced)
    raise UnsupportedModelError(
        "torch.compile hides calls of this model from its Jacobian, among them one of "
        f"{', '.join(missing) or 'those it makes'}. Write it in another way (F.pad as torch.constant_pad_nd, "
        "x.T as x.transpose), or leave linearize and the penalty out of the compiled function."
    )
