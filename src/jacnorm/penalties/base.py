"""The base class of all penalties: a weight, a pace, and a random stream of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..linearization import Linearization
from ..pytorch.half import Choice
from ..pytorch.outputs import Output
from ..pytorch.precision import at_least_single, without_autocast
from ..pytorch.tracing import gaussian, outside_torch_func, tracing
from ..recording import linearized, run_plainly, with_its_inputs
from ..request import BatchNorm, Engine, request_for
from ..trust.checks import as_tensor, check_fraction, check_weight, check_whole
from .pace import Pace
from .settings import Setting

LOOKS = 2**31  # where the random stream of calls under `no_grad` begins: training never gets there


class Unrecorded(Linearization):
    """The Jacobian in a step that pays nothing: it has an output, and no products."""

    def __init__(self, model: Any, result: Any, output: Tensor):
        self.model, self.output, self.verified, self.is_coupled = model, output, False, False
        self.keep(result)
        self.dtype, self.device = at_least_single(output.dtype), output.device

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InputError(
            "The penalty that linearized the model pays nothing in this step, so it has not recorded the "
            "model. For several penalties, or to measure in every step, call jacnorm.linearize(model, x)."
        )

    def _itself(self, *_: Any) -> Any:
        return self

    affine = weighted = project = margins = minus = antisymmetric = between = _itself  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Unrecorded({tuple(self.output.shape)})"


class Penalty(nn.Module, ABC):
    """The base class of penalties. `penalty(J)` returns a scalar to add to the loss.

    In `penalty(J, index=idx, labels=y)`, J is a `Linearization` with a batch of B samples. `idx` (B,) holds
    their positions in the data set, for penalties that store vectors. `y` (B,) holds their labels, for
    penalties that need them. Raises `InputError` if an argument does not fit.

    Under `no_grad` the value is the same, and the penalty does not change: no vector is stored, and random
    numbers come from another stream. So a validation loop has no effect on training.

    weight
        The factor of the penalty. With weight 0 nothing is computed. A schedule may set `penalty.weight`.
    seed
        The seed of the penalty's own random numbers.

    These arguments reduce the cost:

    every
        Only every k-th call returns the penalty, multiplied by k; the other calls return zero. Gradients are
        right on average. (Calls under `no_grad` do not count.) If J comes from penalty.linearize(model, x)
        instead of `jacnorm.linearize`, steps without the penalty cost no more than plain steps.
    budget
        With 1.3, a training step takes on average 1.3 times as long as a step without the penalty. `every`
        is chosen from times that are measured during training, from one J to the next. The result of a
        training run then depends on the machine.
    fraction
        The fraction of each batch that is penalized, drawn at random. The model runs a second time on this
        part, with the batch norm statistics of the whole batch and with new dropout masks. For this reason
        `every` saves more.
    """

    def __init__(
        self,
        weight: float,
        seed: int = 0,
        *,
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
    ):
        super().__init__()
        check_weight(weight)  # nn.Module would register a parameter before the setter sees it
        self.weight, self.seed, self.fraction = weight, seed, fraction
        self.is_looking = False  # what a call finds is not kept for the next one
        self.pace = Pace(every, budget)
        self.precision_choice = Choice()  # whether precision= pays
        self._draws = torch.tensor(0, device="cpu")  # a tensor, so that compiled steps can increase it
        self._looks = torch.tensor(LOOKS, device="cpu")

    needs_labels = False  # whether `forward` takes labels

    weight = Setting[float](lambda _, weight: check_weight(weight))
    seed = Setting[int](check_whole)
    fraction = Setting[float](check_fraction)

    @property
    def every(self) -> int:
        return self.pace.every

    @every.setter
    def every(self, every: int) -> None:
        self.pace = Pace(every, self.pace.budget)

    @property
    def budget(self) -> float | None:
        return self.pace.budget

    @budget.setter
    def budget(self, budget: float | None) -> None:
        self.pace = Pace(1, budget)

    def __call__(self, J: Linearization, index: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        J = self.checked(J, labels)
        factor = self._factor(J)
        self.pace.is_unusual |= J.verified
        if factor == 0:  # a leaf, so that backward() works (compiled code cannot make leaves)
            shape = self.value_shape(J)
            return torch.zeros(shape, dtype=J.dtype, device=J.device, requires_grad=not tracing())
        if torch.is_grad_enabled():
            value = self._value(J, index, labels)
            return value if factor == 1 else factor * value
        with self.looking(self._looks):
            return self._value(J, index, labels)

    def _value(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        if self.fraction < 1:
            J, index, labels = self._part(J, index, labels)
        with without_autocast(J.device):
            return self._paid(J, index, labels)

    @contextmanager
    def looking(self, draws: Tensor) -> Iterator[None]:
        """Calls in this context store nothing, and draw from the random stream at this position."""
        before = self._draws, self.is_looking
        self._draws, self.is_looking = draws, True
        try:
            yield
        finally:
            self._draws, self.is_looking = before

    def _paid(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        """What this batch comes to, before the pace is counted in."""
        asked = {"labels": labels} if self.needs_labels else {}
        value: Tensor = super().__call__(J, index=index, **asked)
        return value

    def checked(self, J: Linearization, labels: Tensor | None) -> Linearization:
        """J as a map of one tensor. Raises `InputError` if the penalty cannot take this J or these labels."""
        if not isinstance(J, Linearization):
            raise InputError(
                f"A penalty takes J = jacnorm.linearize(model, x), found {type(J).__name__}; "
                "J.output is model(x)."
            )
        if self.needs_labels and labels is None:
            raise InputError(
                f"{type(self).__name__} needs the labels of these samples: penalty(J, labels=y)."
            )
        return J.flat

    def linearize(
        self,
        model: Callable[..., Any],
        x: Tensor | tuple[Tensor, ...],
        *args: Any,
        engine: Engine = "auto",
        batch_norm: BatchNorm = "flowing",
        at: str | None = None,
        to: str | None = None,
        output: Output = None,
        precision: torch.dtype | None = None,
        through: Sequence[str] = (),
        coupled: bool = False,
        **kwargs: Any,
    ) -> Linearization:
        """Like `jacnorm.linearize`, but in a step without this penalty the model runs without recording.

        J then has `output` and `result`, and no products. Whether the step pays is decided here; a later
        `penalty(J)` follows this decision. Arguments and errors are those of `jacnorm.linearize`.
        """
        how = at, to, output, precision, through, coupled, self.precision_choice
        request = request_for(model, x, args, kwargs, engine, batch_norm, *how)
        factor = self._next_factor(request.agreed) if torch.is_grad_enabled() else None
        if factor == 0:
            J: Linearization = Unrecorded(model, *run_plainly(request))
        else:
            J = with_its_inputs(linearized(request), request)
        J.paid_by = None if factor is None else (self, factor)
        return J

    def _factor(self, J: Linearization) -> int:
        if not torch.is_grad_enabled():
            return 1
        if J.paid_by is not None and J.paid_by[0] is self:
            return J.paid_by[1]
        return self._next_factor(J.agreed)

    def _next_factor(self, agreed: Callable[[int], int]) -> int:
        return self.pace.factor(agreed) if self.weight > 0 else 0

    def value_shape(self, J: Linearization) -> torch.Size:
        """The shape of the value that the penalty returns."""
        return torch.Size(())

    @abstractmethod
    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor: ...

    def _part(
        self, J: Linearization, index: Tensor | None, labels: Tensor | None
    ) -> tuple[Linearization, Tensor | None, Tensor | None]:
        batch = J.input_shape[0]
        chosen = self.random(torch.Size((batch,)), J).argsort()[: max(1, round(self.fraction * batch))]
        index, labels = (
            None if given is None else _rows(name, as_tensor(given), chosen, batch)
            for name, given in (("index", index), ("labels", labels))
        )
        return J.subset(chosen), index, labels

    def random(self, shape: torch.Size, like: Tensor | Linearization) -> Tensor:
        """Gaussian numbers from the penalty's own random stream. The global state of torch is not changed."""
        with outside_torch_func():
            seed = 1_000_003 * self._draws + self.seed
            self._draws.add_(1)
        return gaussian(seed, shape, like.dtype, like.device)

    # The positions in the stream and between two payments, and whether half precision pays, are saved with
    # state_dict, so that a resumed training goes on as it would have.
    def get_extra_state(self) -> Tensor:
        return torch.tensor([int(self._draws), self.pace.wait, *self.precision_choice.state()], device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        draws, self.pace.wait, *half = state.tolist()
        self._draws.fill_(draws)
        self.precision_choice.load(half)

    def extra_repr(self) -> str:
        lazy = {"every": self.pace.every, "budget": self.pace.budget, "fraction": self.fraction}
        usual = {"every": 1, "budget": None, "fraction": 1.0}
        return ", ".join([f"weight={self.weight}", *[f"{k}={v}" for k, v in lazy.items() if v != usual[k]]])


def _rows(name: str, given: Tensor, chosen: Tensor, batch: int) -> Tensor:
    if given.shape[:1] != (batch,):
        raise InputError(
            f"{name} has shape {tuple(given.shape)}; it must have a row for each of the {batch} samples."
        )
    return given[chosen.to(given.device)]
