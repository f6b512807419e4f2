"""A weight that finds itself: it rises while the norm is above a target, and falls while it is below."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InputError, warn
from ..estimators.operator import flat
from ..linearization import Linearization
from ..pytorch.modules import modules_of, unchanged
from ..pytorch.tracing import inside_torch_func, refuse, tracing
from ..trust.checks import is_number
from .report import counted, rows_of, untouched
from .steps import Steps

if TYPE_CHECKING:
    from .norm import NormPenalty

RATE = 0.02  # the integral part: log weight moves by so much times the relative error, at most 1, per step
GAIN = 2.0  # the proportional part: log weight follows the error itself by so much
SMOOTH = 0.1  # the share of the newest step in the norm that steers
LEAST = 1e-3  # a norm below so small a part of the target counts as that
FLOOR = 1e-4  # of the weight at the start, below which the integral does not go

SAMPLES = 8  # of a measurement
TIME = 0.03  # the part of it that measurements may take
STEP = 6  # a step that pays, in products with J (of a few samples, which take hardly less time than many)
NEW = 0.2  # the share of the newest measurement in the ratio

DEAD = 0.02  # outputs that differ by this part of the most that was seen tell nothing any more
WELL = 0.1  # those that differ by this part do
BACK = 3.0  # by how much a weight is taken back from where they last did: harm comes late
COLLAPSES = 3  # how often a network may fall dead below its target before the target is to blame
RISEN = 10.0  # by such a factor a weight must rise to show whether the norm follows
FOLLOWED = 0.95  # which it does when it falls to this part
STALLED = 4  # powers of ten without that end the search;
RISE = 1.2  # one less, if the norm even rises by this factor, as it does in steps that are too long;
FLAT = 0.02  # two less, if it had followed before, and now stays where it is to this part


@dataclass
class State:
    """What a resumed training needs to go on with the same bits."""

    error: float = 0.0  # log(norm/target), which the weight has followed
    norm: float = 0.0  # smoothed
    steps: int = 0
    ratio: float = 1.0  # of norms as they are estimated to what is measured
    checks: int = 0
    payments: int = 0
    next_check: int = 1
    most: float = 0.0  # by how much the outputs of a batch have differed from each other
    safe: float = 0.0  # the weight with which they last differed well
    is_dead: bool = False
    collapses: int = 0
    ceiling: float = math.inf
    mark: float = 0.0  # a weight, while the norm is above its target
    mark_norm: float = 0.0  # and the norm then
    followed: float = 0.0  # the weight with which the norm last fell
    stalled: int = 0  # powers of ten of the weight since then
    norms: float = 0.0  # sums over the calls of the step under way
    spreads: float = 0.0
    calls: int = 0


OF_THE_ERROR = ("error", "ratio", "checks", "payments", "next_check")
OF_THE_NORM = ("norm", "steps", "norms", "spreads", "calls")


class Steering:
    """PI control of the logarithm of a penalty's weight, by the norms that the penalty finds.

    With m the smoothed mean (or quantile) of the norms, divided by how much their estimates are off, and
    e = log(m/target), the weight is w·exp(GAIN·e), and log w moves by RATE·(m/target − 1) at each step. So
    the mean of the norm meets the target, and the penalty fades at once where the norm is below it, however
    large w is.
    """

    def __init__(self, target: float, quantile: float | None, weight: float):
        self.target, self.quantile, self.start = target, quantile, weight
        self.state = State()
        self._steps = Steps()
        self._found: list[Tensor] = []  # norms and spreads that nobody has read yet

    def aim(self, target: float, quantile: float | None) -> None:
        """Take another target, and forget what the search has found out about the old one: its ceiling, and
        all that led to it. What is known of the norm is kept."""
        if (target, quantile) == (self.target, self.quantile):
            return
        kept = OF_THE_ERROR + (OF_THE_NORM if quantile == self.quantile else ())
        if quantile != self.quantile:
            self._found.clear()
        self.target, self.quantile = target, quantile
        self.state = State(**{name: getattr(self.state, name) for name in kept})

    def begin(self, penalty: NormPenalty, J: Linearization) -> None:
        """Before a payment: move the weight, if the network has moved since the last one."""
        if tracing() or inside_torch_func():
            refuse(
                "target= moves the weight by the norms that it finds, which a compiled or transformed step "
                "cannot look at: compile the model alone, or give a weight without a target."
            )
        if penalty.pace.budget is not None and J.processes:
            raise InputError(
                "target= needs the same steps to pay in all processes, and budget= goes by the clock of "
                "each: give every= instead."
            )
        if self._steps.begins(J):
            self._read()
            if self.state.calls:
                self._step(penalty)

    def end(self, penalty: NormPenalty, J: Linearization, index: Any, labels: Any) -> None:
        """After a payment: keep what it has found, and now and then measure how far that is off."""
        assert penalty.norms is not None
        s = self.state
        s.payments += 1
        is_due = penalty.is_estimated and s.payments >= s.next_check
        if is_due and bool(penalty.norms.isfinite().all()):
            self._measure(penalty, J, index, labels)
        found = torch.stack([self._statistic(penalty.norms), spread(J.output)])
        self._found.append(averaged(J, found))

    def _statistic(self, norms: Tensor) -> Tensor:
        return norms.double().mean() if self.quantile is None else quantile(norms.double(), self.quantile)

    def _read(self) -> None:
        s = self.state
        for norm, spread in torch.stack(self._found).tolist() if self._found else ():
            s.norms, s.spreads, s.calls = s.norms + norm, s.spreads + spread, s.calls + 1
        self._found.clear()

    def _step(self, penalty: NormPenalty) -> None:
        s = self.state
        norm, spread = s.norms / s.calls / s.ratio, s.spreads / s.calls
        s.norms, s.spreads, s.calls = 0.0, 0.0, 0
        if not math.isfinite(norm):
            return
        s.norm = norm if s.steps == 0 else s.norm + SMOOTH * (norm - s.norm)
        s.steps += 1
        ratio = s.norm / self.target
        error = min(math.log(max(ratio, LEAST)), 1.0)
        # The integral is over the norm itself and not its logarithm: then its mean meets the target.
        change = RATE * min(ratio - 1, 1.0) + GAIN * (error - s.error)
        lowest = FLOOR * self.start * math.exp(GAIN * min(error, 0.0))
        s.error = error
        self._look_for_harm(penalty.weight, spread)
        penalty.weight = min(max(penalty.weight * math.exp(change), lowest), s.ceiling)

    # Targets that cannot be reached. ------------------------------------------------------------------------

    def _look_for_harm(self, weight: float, spread: float) -> None:
        s = self.state
        if math.isfinite(spread):
            self._look_at_outputs(weight, spread)
        if s.error <= 0:
            s.mark = 0.0
        elif s.mark == 0 or s.norm < FOLLOWED * s.mark_norm:
            s.mark = s.followed = max(weight, self.start)
            s.mark_norm, s.stalled = s.norm, 0
        elif weight > RISEN * s.mark:
            self._look_at_norm(weight)

    def _look_at_norm(self, weight: float) -> None:
        """The weight has risen by a power of ten, and the norm has not fallen."""
        s = self.state
        change = s.norm / s.mark_norm
        s.mark, s.mark_norm, s.stalled = weight, s.norm, s.stalled + 1
        is_lowest = s.followed > self.start and abs(change - 1) < FLAT
        if s.stalled >= STALLED - (2 if is_lowest else int(change > RISE)):
            how = "has risen, too" if change > RISE else "has not followed"
            self._hold(s.followed, f"The weight has risen to {weight:.3g}, and the norm {how}")

    def _look_at_outputs(self, weight: float, spread: float) -> None:
        s = self.state
        s.most = max(s.most, spread)
        if spread >= WELL * s.most:
            s.safe, s.is_dead = weight, False
        elif spread < DEAD * s.most:
            s.collapses += not s.is_dead
            s.is_dead = True
            if s.error > 0 or s.collapses >= COLLAPSES:
                differ = f"the outputs of a batch differ by {spread / s.most:.2%} of what they did"
                self._hold(s.safe / BACK, f"With a weight of {weight:.3g} {differ}")

    def _hold(self, ceiling: float, why: str) -> None:
        s = self.state
        if math.isinf(s.ceiling):
            warn(
                f"The target {self.target:.4g} is not reached: the norm is {s.norm:.4g}. {why}. From here on "
                f"the weight stays at {ceiling:.3g} or below. Take a larger target."
            )
        s.ceiling = min(s.ceiling, ceiling)

    # Estimates that are too low. ----------------------------------------------------------------------------

    def _measure(self, penalty: NormPenalty, J: Linearization, index: Any, labels: Any) -> None:
        """The norms of a few samples, as they are. Nothing else changes."""
        s, norms = self.state, penalty.norms
        assert norms is not None
        few = torch.arange(min(SAMPLES, len(norms)), device=J.device)
        with untouched(penalty), unchanged(modules_of(J.model), J.device), torch.no_grad():
            part = J.subset(few)
            with counted(part) as products:
                penalty.exactly(part, rows_of(index, few), rows_of(labels, few))
            assert penalty.norms is not None
            both = [of.double().mean() for of in (norms[: len(few)], penalty.norms)]
        found = torch.stack([*both, both[0].new_tensor(1 + len(products))])
        estimated, measured, cost = averaged(J, found).tolist()
        s.checks += 1
        if measured > 0 and estimated > 0:
            s.ratio += max(NEW, 1 / s.checks) * (estimated / measured - s.ratio)
        s.next_check = s.payments + min(s.payments, math.ceil(cost / (TIME * STEP)))

    # Checkpoints. -------------------------------------------------------------------------------------------

    def numbers(self) -> list[float]:
        self._read()
        return [float(number) for number in (*astuple(self.state), self.target, self.quantile or 0)]

    def load(self, numbers: list[float]) -> None:
        kinds = [type(number) for number in astuple(State())]
        self.state = State(*(kind(number) for kind, number in zip(kinds, numbers, strict=False)))
        self._steps = Steps()
        self._found.clear()
        if len(numbers) > len(kinds):  # the target that these numbers belong to
            mine = self.target, self.quantile
            self.target, quantile = numbers[len(kinds) :]
            self.quantile = quantile or None
            self.aim(*mine)


def check_target(penalty: NormPenalty, target: float | None, quantile: float | None) -> None:
    if target is not None and penalty.no_target:
        raise InputError(f"{type(penalty).__name__} takes no target=: {penalty.no_target}")
    if target is None:
        if quantile is not None:
            raise InputError(f"target_quantile={quantile!r} says which norm has a target: give target=, too.")
        return
    if not (is_number(target) and 0 < target < math.inf):
        raise InputError(f"target={target!r}: a norm to aim for is a number above 0.")
    if quantile is not None and not (is_number(quantile) and 0 < quantile < 1):
        raise InputError(
            f"target_quantile={quantile!r}: it must lie between 0 and 1; 0.95 is the norm that 95 % of the "
            "samples stay below."
        )
    if penalty.weight == 0:
        raise InputError("weight=0 with a target: the weight is where the search begins. Leave it out.")
    if penalty.reduction not in ("mean", "sum"):
        raise InputError(
            f"target= steers a mean or a quantile, not reduction={penalty.reduction!r}: take 'mean' or "
            "'sum', and target_quantile= for the largest norms."
        )
    points = torch.tensor([1.0, 2.0, 5.0], device="cpu") * target
    values = penalty.slopes(points)
    if not (values > 0).all():
        at, slope = next((p, v) for p, v in zip(points.tolist(), values.tolist(), strict=True) if not v > 0)
        raise InputError(
            f"target={target:g} needs a penalty that rises with the norm from there on; h has slope "
            f"{slope:g} at {at:g}. (With a target, h='identity' does what a hinge is for.)"
        )


def quantile(norms: Tensor, q: float) -> Tensor:
    """Of the samples that the batch is drawn from: the k-th smallest of n stands for k/(n + 1)."""
    n = len(norms)
    return norms.quantile(min(max((q * (n + 1) - 1) / max(n - 1, 1), 0.0), 1.0))


def spread(output: Tensor) -> Tensor:
    """By how much the outputs of a batch differ from each other, root mean square; NaN for one sample."""
    rows = flat(output.detach()).double()
    return rows.var(0).mean().sqrt() if len(rows) > 1 else rows.new_full((), math.nan)


def averaged(J: Linearization, numbers: Tensor) -> Tensor:
    """Over the processes that train the same network."""
    for group in J.processes:
        numbers = numbers.clone()
        dist.all_reduce(numbers, group=group)
        numbers = numbers / dist.get_world_size(group)
    return numbers
