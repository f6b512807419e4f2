"""The arguments of `linearize`, as one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .engines.batchnorm import Gate, Statistics
from .engines.recorder import Recorder
from .engines.section import Section, Shapes, inputs
from .engines.traced import TracedRecorder
from .errors import InputError, UnsupportedModelError
from .joint import joined
from .pytorch.half import Choice, pays_for
from .pytorch.outputs import Output
from .pytorch.sharded import Sharding, sharding_of
from .pytorch.tracing import tracing
from .trust.checks import check_input, check_precision
from .trust.verdicts import Kind, kind

Engine = Literal["auto", "layerwise", "autograd"]
BatchNorm = Literal["fixed", "flowing"]


@dataclass(slots=True)
class Request:
    model: Callable[..., Tensor]
    x: Tensor
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    engine: Engine
    batch_norm: BatchNorm
    at: str | None
    to: str | None
    precision: torch.dtype | None = None  # of the products of J
    through: tuple[str, ...] = ()  # submodules at which J may be taken apart
    coupled: bool = False  # samples may depend on each other
    shapes: Shapes | None = None  # of the inputs, if x holds several side by side
    sharding: Sharding | None = None  # of the model's weights over processes
    output: Output = None  # which of the tensors that the model returns
    given: Sequence[Statistics | None] = ()  # batch norm statistics of the batch from which x was taken

    @property
    def kind(self) -> Kind:
        return kind(self.x, (*self.args, str(self.shapes or ""), _which(self.output)), self.kwargs)

    def agreed(self, value: int) -> int:
        """The largest value among the processes that a model is sharded over."""
        return int(value) if self.sharding is None else self.sharding.agreed(value)

    def recorder(self, *, gate: Gate | None = None, check: Any = None) -> Recorder:
        return Recorder(
            flowing=self.batch_norm == "flowing",
            gate=gate,
            given=self.given,
            check=check,
            precision=self.precision,
            waits=self.sharding is not None,
        )

    def traced_recorder(self) -> TracedRecorder:
        return TracedRecorder(
            flowing=self.batch_norm == "flowing", given=self.given, precision=self.precision
        )

    def section(self) -> Section:
        between = self.at, self.to, self.through
        how = self.shapes, self.sharding, self.output
        return Section(self.model, self.args, self.kwargs, *between, *how)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The inputs of the model, which come before its further arguments."""
        return inputs(self.x, self.shapes)

    @property
    def has_rows(self) -> bool:
        """Whether some further argument seems to have a row per sample."""
        return any(self._is_rows(value) for value in tree_leaves((self.args, self.kwargs)))

    def _is_rows(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.dim() > 0 and len(value) == len(self.x)

    def part(self, positions: Tensor, given: Sequence[Statistics | None]) -> Request:
        """The same request for some samples. Further arguments with a row per sample are cut, as x is."""

        def taken(value: Any) -> Any:
            return value[positions] if self._is_rows(value) else value

        args, kwargs = tree_map(taken, (self.args, self.kwargs))
        return replace(self, x=self.x[positions], args=args, kwargs=kwargs, given=given)


def _which(output: Output) -> str:
    """A name for `output`. Functions with the same code share it, since a lambda is new in each step."""
    code = getattr(output, "__code__", None)
    return repr(output) if code is None else f"{code.co_filename}:{code.co_firstlineno}"


SHARDED = "The model's weights are sharded (fully_shard), so J needs its calls one by one:"


def request_for(
    model: Callable[..., Any],
    x: Tensor | tuple[Tensor, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    engine: Engine,
    batch_norm: BatchNorm,
    at: str | None,
    to: str | None,
    output: Output = None,
    precision: torch.dtype | None = None,
    through: Sequence[str] = (),
    coupled: bool = False,
    choice: Choice | None = None,
) -> Request:
    shapes = None
    if isinstance(x, tuple) and at is None:
        x, shapes = joined(x)
    elif isinstance(x, tuple) and x:  # J begins at a later layer, so the other inputs are constants
        x, args = x[0], (*x[1:], *args)
    check_input(x, at, model)
    assert isinstance(x, Tensor)
    if engine not in ("auto", "layerwise", "autograd"):
        raise InputError(f"engine={engine!r}: choose 'auto', 'layerwise' or 'autograd'.")
    if batch_norm not in ("fixed", "flowing"):
        raise InputError(f"batch_norm={batch_norm!r}: choose 'fixed' or 'flowing'.")
    if isinstance(through, str):
        raise InputError(f"through={through!r}: give a list of names, through=[{through!r}].")
    if precision is not None:
        check_precision(precision, x)
        is_needed = x.dtype == torch.float32  # other models have products in half precision anyway
        precision = precision if is_needed and pays_for(choice, precision, x.device) else None
    sharding = None if tracing() else sharding_of(model)
    if sharding is not None and engine == "autograd":
        raise UnsupportedModelError(f"{SHARDED} engine='autograd' does not record them.")
    between = at, to, precision, tuple(through), bool(coupled)
    return Request(model, x, args, kwargs, engine, batch_norm, *between, shapes, sharding, output)
