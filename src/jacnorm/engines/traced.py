"""The recorder under torch.compile: it runs while dynamo traces, and leaves only tensor calls behind."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor

from ..errors import UnsupportedModelError
from ..pytorch.tracing import while_tracing
from .recorder import Recorder
from .slots import TracedSlots
from .tape import Plan


class TracedRecorder(Recorder):
    """A recorder without the checks for hidden calls. Dynamo cannot follow these checks, and an eager run has
    already verified the model."""

    def __init__(self, **options: Any):
        super().__init__(slots=TracedSlots(), **options)

    def begin(self, x: Tensor) -> None:
        self._source = self.slots.new(x)


@while_tracing
def check_plan(eager: Plan, traced: Plan) -> None:
    """Compare the calls with those of an eager run. Dynamo hides some calls from a TorchFunctionMode."""
    if eager == traced:
        return
    missing = Counter(name for name, _ in eager) - Counter(name for name, _ in traced)
    raise UnsupportedModelError(
        "torch.compile hides calls of this model from its Jacobian, among them one of "
        f"{', '.join(missing) or 'those it makes'}. Write it in another way (F.pad as torch.constant_pad_nd, "
        "x.T as x.transpose), or leave linearize and the penalty out of the compiled function."
    )
