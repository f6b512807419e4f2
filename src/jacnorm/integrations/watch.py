"""The Jacobian of a model that the training step of another library calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, JacnormError, warn
from ..linearization import Linearization
from ..penalties import AnalyticPenalty, NormPenalty, Penalty, SpectralPenalty
from ..penalties.base import Unrecorded
from ..pytorch.forwarding import replaced_forward
from ..pytorch.outputs import LOGITS, Output, parts_of
from ..recording import linearize
from ..request import BatchNorm


class Watch:
    """Linearizes the first call of one of the modules in each step. The modules return their usual results.

    >>> net, x = nn.Linear(4, 3), torch.randn(2, 4)
    >>> with Watch(net).step() as seen:
    ...     loss = net(x).square().mean()  # any code that calls net
    ...     J = seen.J
    >>> J
    Linearization((2, 4) -> (2, 3), engine='layerwise')
    """

    def __init__(
        self,
        *modules: nn.Module,
        batch_norm: BatchNorm = "flowing",
        linearize: Callable[..., Linearization] = linearize,  # or penalty.linearize
        output: Output = None,  # as in `linearize`
        precision: torch.dtype | None = None,  # as in `linearize`
    ):
        self._output = main_output if output is None else output
        self._calls = [_Call(module) for module in modules]
        self._linearize = linearize
        self._batch_norm: BatchNorm = batch_norm
        self._precision = precision
        self._J: Linearization | None = None
        self._busy = False

    @property
    def J(self) -> Linearization:
        if self._J is None:
            names = " or ".join(type(call.module).__name__ for call in self._calls)
            raise InputError(
                f"The training step has not called {names}, so there is no Jacobian to penalize. Name "
                "a module that it calls."
            )
        return self._J

    @contextmanager
    def step(self) -> Iterator[Watch]:
        """Watch the modules during one step. At the end J is dropped, with the graph that it holds."""
        with ExitStack() as stack:
            for call in self._calls:
                forward = partial(self._forward, call, call.module.forward)
                stack.enter_context(replaced_forward(call.module, forward))
            try:
                yield self
            finally:
                self._J = None

    def _forward(self, call: _Call, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._J is not None or self._busy or not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        x, run = _of_main_input(call.module, plain, args, kwargs)
        self._busy = True
        try:
            how: Any = {
                "batch_norm": self._batch_norm,
                "output": self._output,
                "precision": self._precision,
            }
            self._J = self._linearize(call, x, run, args, kwargs, **how)
        finally:
            self._busy = False
        self._J.model = call.module
        return self._J.result


Run = Callable[[Tensor, tuple[Any, ...], dict[str, Any]], Any]


class _Call:
    """A module as a function of its main input.

    There is one object per module, because linearize remembers what it has checked. The other arguments are
    passed along, so that linearize can take a part of the batch.
    """

    def __init__(self, module: nn.Module):
        self.module = module

    @property
    def training(self) -> bool:
        return self.module.training

    def __call__(self, x: Tensor, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return run(x, args, kwargs)


def main_output(result: Any) -> Any:
    """The logits, or the whole result if it has none."""
    return parts_of(result).get(LOGITS, result) if not isinstance(result, Tensor) else result


def _of_main_input(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Run]:
    """x, and a function that runs the module on another x. x is the main argument, or the embeddings of the
    tokens in it."""
    # Models of Hugging Face say which argument is the main one.
    name = getattr(module, "main_input_name", None) or _first_named(forward, kwargs)
    x = args[0] if args else kwargs.get(name)
    embed = getattr(module, "get_input_embeddings", None)
    if isinstance(x, Tensor) and not x.is_floating_point() and embed is not None:
        layer = embed()
        return layer(x), lambda e, args, kwargs: _with_embeddings(layer, e, lambda: forward(*args, **kwargs))
    if args:
        return x, lambda z, args, kwargs: forward(z, *args[1:], **kwargs)
    name = name if x is not None else "inputs_embeds"
    return kwargs.get(name), lambda z, _, kwargs: forward(**{**kwargs, name: z})


def _first_named(forward: Callable[..., Any], kwargs: dict[str, Any]) -> str:
    """The name that comes first in the signature of forward, or else first in the call."""
    return next(
        (name for name in inspect.signature(forward).parameters if name in kwargs), next(iter(kwargs), "")
    )


def _with_embeddings(layer: nn.Module, e: Tensor, run: Callable[[], Any]) -> Any:
    """Run with e instead of the output of the layer's first call. (A decoder may call the layer again.)"""
    plain, waiting = layer.forward, [e]

    def forward(*args: Any, **kwargs: Any) -> Any:
        return waiting.pop() if waiting else plain(*args, **kwargs)

    with replaced_forward(layer, forward):
        return run()


def name_of(penalty: Penalty) -> str:
    """The name of a penalty's norm in a log."""
    return "sigma" if isinstance(penalty, SpectralPenalty | AnalyticPenalty) else "norm"


def measures(penalty: Penalty, value: Tensor) -> dict[str, Tensor]:
    """The numbers to log: the penalty, and the mean norm of the last step that paid."""
    if value.dim() > 0:
        raise InputError(
            "The penalty has reduction='none', which gives a value for each sample, but a trainer adds one "
            "number to the loss: choose 'mean', 'sum' or 'max'."
        )
    found = {"penalty": value.detach()}
    if isinstance(penalty, NormPenalty) and penalty.norms is not None:
        found[name_of(penalty)] = penalty.norms.mean()
    if isinstance(penalty, NormPenalty) and penalty.steering is not None:
        found["penalty_weight"] = torch.tensor(penalty.weight, device="cpu")
    return found


class OnceAnEpoch:
    """Calls `penalty.report` for a log, in the first step of each epoch that pays."""

    def __init__(self, penalty: Penalty | None):
        self._penalty = penalty
        self._epoch: float | None = None  # the last epoch with a report

    def report(
        self,
        epoch: float,
        J: Linearization,
        index: Tensor | None = None,
        loss: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, float]:
        """The numbers of `penalty.report` by name; empty in all steps but one per epoch.

        If the report fails, training continues: there is one warning, and no further report.
        """
        penalty = self._penalty
        if epoch == self._epoch or not isinstance(penalty, NormPenalty) or penalty.weight == 0:
            return {}
        if isinstance(J, Unrecorded):
            return {}
        self._epoch = epoch
        loss = None if loss is None else loss.detach()
        try:
            report = penalty.report(J, index, labels, loss=loss)
        except (JacnormError, RuntimeError) as error:
            self._penalty = None
            warn(
                "The error of the penalty's estimate is not logged, because the model cannot run on a few "
                f"samples of the batch ({type(error).__name__}: {error}). Training continues."
            )
            return {}
        return {f"{name_of(penalty)}_{name}": value for name, value in report.numbers().items()}
