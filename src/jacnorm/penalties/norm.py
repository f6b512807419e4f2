"""The base class of penalties on a norm of J at each sample: h, the reduction, and the gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypedDict, get_args

import torch
from torch import Tensor

from ..engines.pairing import Pairing, differentiable_once, split_factor
from ..errors import InputError
from ..estimators.gram import MAX_BYTES, bytes_of
from ..estimators.operator import check_uncoupled, column, flat
from ..linearization import Linearization
from ..pytorch.tracing import inside_torch_func, tracing
from ..trust.checks import check_positive
from .base import Penalty
from .curve import Curve, Shape, check_curve, check_mixing, with_slopes
from .report import Report, look
from .settings import Setting, one_of
from .target import Steering, check_target

Reduction = Literal["mean", "sum", "max", "none"]
Pair = tuple[Tensor, Tensor | None]  # u and v; None for v = Jᵀu


class Common(TypedDict, total=False):
    """The arguments that all penalties on a norm share."""

    h: Shape | Curve
    threshold: float
    reduction: Reduction
    every: int
    budget: float | None
    fraction: float
    seed: int
    target: float | None
    target_quantile: float | None


class NormPenalty(Penalty):
    """The base class of penalties on a norm: weight · mean_i h(norm_i) over the samples i.

    `penalty(J)` returns a scalar, or a tensor (B,) with reduction="none".

    h
        "identity" is the norm itself, "square" its square, "hinge" max(0, norm − threshold). Or a function,
        such as `lambda s: (s - 1) ** 2`, that maps the norms (B,) to one number per sample, (B,).
    threshold
        The threshold of "hinge".
    reduction
        "mean", "sum" or "max" over the batch. "none" returns a value per sample, (B,), which can be
        differentiated once.
    every, budget, fraction, seed
        As in `Penalty`.
    target
        The value that the mean norm should reach, before h (for FrobeniusPenalty, the mean of ‖J‖_F²). The
        weight is then only the start: it rises while the norm is above the target, and falls while it is
        below. `penalty.weight` is the current weight. A warning is given if the target cannot be reached.
        `penalty.target` may be set during training. The penalty then serves one network only.
    target_quantile
        With 0.95, the target is for the norm that 95 % of the samples stay below, instead of the mean.

    A subclass finds the norms and the pairs of vectors that carry their gradient,

        ∂norm_i = Σ_k u_kᵀ (∂J_i) v_k    with u_k and v_k held fixed,

    and returns `self.carried(J, norms, pairs)`.
    """

    def __init__(
        self,
        weight: float,
        *,
        h: Shape | Curve = "identity",
        threshold: float = 1.0,
        reduction: Reduction = "mean",
        every: int = 1,
        budget: float | None = None,
        fraction: float = 1.0,
        seed: int = 0,
        target: float | None = None,
        target_quantile: float | None = None,
    ):
        super().__init__(weight, seed, every=every, budget=budget, fraction=fraction)
        check_part(fraction, reduction)
        self.h, self.threshold, self.reduction = h, threshold, reduction
        if callable(h):
            check_mixing(h, reduction)
        self.norms: Tensor | None = None  # the norm of each sample, (B,), in the last step that paid
        self.steering: Steering | None = None
        self._aim(target, target_quantile)

    h = Setting[Shape | Curve](check_curve)
    threshold = Setting[float](check_positive)
    reduction = Setting[Reduction](one_of(*get_args(Reduction)))
    no_target = ""  # why the norm takes no target
    is_estimated = False  # the norms have an error that `exactly` has not
    takes_coupled = False  # whether its pairs are right if samples depend on each other

    def checked(self, J: Linearization, labels: Tensor | None) -> Linearization:
        if not self.takes_coupled or self.reduction == "none":
            check_uncoupled(J)
        return super().checked(J, labels)

    @property
    def target(self) -> float | None:
        return None if self.steering is None else self.steering.target

    @target.setter
    def target(self, target: float | None) -> None:
        self._aim(target, None if target is None else self.target_quantile)

    @property
    def target_quantile(self) -> float | None:
        return None if self.steering is None else self.steering.quantile

    @target_quantile.setter
    def target_quantile(self, quantile: float | None) -> None:
        self._aim(self.target, quantile)

    def check_target(self, target: float | None, quantile: float | None) -> None:
        """Raises `InputError` if the penalty cannot meet such a target."""
        check_target(self, target, quantile)

    def _aim(self, target: float | None, quantile: float | None) -> None:
        self.check_target(target, quantile)
        if target is None:
            self.steering = None
        elif self.steering is None:
            self.steering = Steering(target, quantile, self.weight)
        else:
            self.steering.aim(target, quantile)

    @property
    def is_plain(self) -> bool:
        """Whether the slope of h is known before the norm is."""
        return self.h == "identity" and self.reduction in ("mean", "sum")

    def value_shape(self, J: Linearization) -> torch.Size:
        return torch.Size((len(J.output),)) if self.reduction == "none" else torch.Size(())

    def factor(self, samples: int) -> float:
        """The factor of each h(norm) in the penalty."""
        return self.weight / samples if self.reduction == "mean" else self.weight

    def shaped(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        """The penalty, and h′ of each norm, zero for norms that do not count. (`factor` is not included.)"""
        self._note(norms)
        values, slopes = self._with_slopes(norms)
        if self.reduction == "max":
            is_largest = torch.arange(len(values), device=values.device) == values.argmax()
            return self.weight * values.max(), slopes * is_largest
        value = values if self.reduction == "none" else values.sum()
        return self.factor(len(norms)) * value, slopes

    def _paid(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        if self.steering is None or not torch.is_grad_enabled():
            return super()._paid(J, index, labels)
        self.steering.begin(self, J)
        value = super()._paid(J, index, labels)
        self.steering.end(self, J, index, labels)
        return value

    def slopes(self, norms: Tensor) -> Tensor:
        """h′ of each norm."""
        return self._with_slopes(norms)[1]

    def get_extra_state(self) -> Tensor:
        state = super().get_extra_state()
        if self.steering is None:
            return state
        numbers = [self.weight, *self.steering.numbers()]
        return torch.cat([state.double(), torch.tensor(numbers, dtype=torch.float64, device="cpu")])

    def set_extra_state(self, state: Tensor) -> None:
        count = len(super().get_extra_state())
        super().set_extra_state(state[:count].long())
        if self.steering is not None and len(state) > count:  # without a target there is no more
            self.weight, *numbers = state[count:].tolist()
            self.steering.load(numbers)

    def _note(self, norms: Tensor) -> None:
        if not tracing() and not inside_torch_func():
            self.norms = norms.detach()

    def _with_slopes(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        return with_slopes(self.h, self.threshold, norms)

    def report(
        self,
        J: Linearization,
        index: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        loss: Tensor | float | None = None,
        samples: int = 8,
    ) -> Report:
        """Compare the estimate with the exact norm and its gradient, on the first `samples` samples of J.

        Pass the arguments of `penalty(J)`, before optimizer.step(). `loss` is the loss without the penalty;
        if it is given, the report includes the share of the penalty in the whole loss. Returns a `Report`.
        Raises `InputError` if the weight is 0.

        The model runs once more on these samples; neither the model nor the penalty changes. The report gives
        the cost of a step that pays in products with J. It gives the cost in time as well, if there were
        steps that did not pay. If there are more than 100 outputs, quantities that need a product per output
        are estimated from 100 random vectors.

        >>> import jacnorm as jn
        >>> model, x = torch.nn.Linear(4, 3), torch.randn(8, 4)
        >>> J = jn.linearize(model, x)
        >>> report = jn.SpectralPenalty(0.1, iterations=20).report(J, loss=J.output.square().mean())
        >>> round(abs(report.error), 3), round(report.cosine, 3)
        (0.0, 1.0)
        """
        return look(self, J, index, labels, loss, samples)

    def estimated(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        """The penalty, as training pays it."""
        return self.forward(J, index, labels) if self.needs_labels else self.forward(J, index)  # type: ignore[call-arg]

    def exactly(self, J: Linearization, index: Tensor | None, labels: Tensor | None) -> Tensor:
        """The penalty with the exact norm instead of an estimate."""
        return self.estimated(J, index, labels)

    def carried(
        self, J: Linearization, norms: Tensor, pairs: Iterable[Pair], pulled: Pairing | None = None
    ) -> Tensor:
        """The penalty, with its gradient. `norms` has shape (B,); `pairs` are the u_k and v_k of the class.

        Norms and u may depend on J.output: autograd carries that part of the gradient to the network. If
        there is only one pair, and Jᵀu was already computed with a pairing, pass that pairing as `pulled`.
        """
        if not torch.is_grad_enabled():
            return self.shaped(norms)[0]
        if self.reduction == "none":
            return self.for_each(J, norms, pairs)
        value, slopes = self.shaped(norms.detach())
        scale, rest = split_factor(self.factor(len(norms)), J)
        pairing, at_output = pulled or Pairing(), [norms * slopes * scale] if norms.requires_grad else []
        for u, v in pairs:
            with torch.no_grad():
                c = J.vjp(u.detach(), pairing) if pulled is None else None
                v = c if v is None else v
                assert v is not None
                w = J.jvp(v * column(scale * slopes, v), pairing)
            if u.requires_grad:
                at_output.append((u * w).flatten(1).sum(1))
        value = pairing.handed_over(value, rest)
        return _with_gradient_of(torch.stack(at_output).sum() * rest, value) if at_output else value

    def for_each(self, J: Linearization, norms: Tensor, pairs: Iterable[Pair]) -> Tensor:
        """weight · h(norm_i) of each sample. Its gradient is computed in backward(), when the gradient that
        arrives at each sample is known."""
        self._note(norms)
        values, slopes = self._with_slopes(norms.detach())
        for u, v in pairs:
            if v is None:
                with torch.no_grad():
                    v = J.vjp(u)
            norms = _with_gradient_of((flat(u) * flat(J.jvp(v))).sum(1), norms)
        return self.weight * _with_gradient_of(slopes * differentiable_once(norms), values)

    def extra_repr(self) -> str:
        h = getattr(self.h, "__name__", repr(self.h)) if callable(self.h) else repr(self.h)
        shape = f", h={h}" + (f", threshold={self.threshold}" if self.h == "hinge" else "")
        reduction = "" if self.reduction == "mean" else f", reduction={self.reduction!r}"
        target = "" if self.steering is None else f", target={self.steering.target:g}"
        return super().extra_repr() + target + ("" if self.h == "identity" else shape) + reduction


def check_part(fraction: float, reduction: Reduction) -> None:
    if fraction < 1 and reduction != "mean":
        raise InputError(f"fraction={fraction}: only a mean can be estimated from a part of the batch.")


def held(J: Linearization, *, instead: str) -> Tensor:
    """All of J, (B, n_out, n_in), without a graph. Raises `InputError` if it is too large for memory."""
    batch, (m, n) = J.output_shape[0], (shape[1:].numel() for shape in (J.output_shape, J.input_shape))
    if bytes_of(J) > MAX_BYTES:
        raise InputError(
            f"All of J is needed, {batch} matrices of {m} × {n}: {bytes_of(J):,} bytes "
            f"({bytes_of(J) / 2**30:.1f} GiB), but the limit is {MAX_BYTES / 2**30:.0f} GiB. "
            f"{instead}"
        )
    with torch.no_grad():
        return J.dense()


def _with_gradient_of(part: Tensor, value: Tensor) -> Tensor:
    return value + (part - part.detach())
