"""Which steps pay a penalty: all, every k-th with k times the weight, or as many as a budget allows."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from statistics import median, quantiles

from ..errors import InputError
from ..pytorch.tracing import refuse, tracing
from ..trust.checks import check_count, is_number

REMEMBERED = 30  # steps of each kind; their median is steady on a noisy machine
NEEDED = 3  # steps of each kind before their times are used
SETTLING = 2  # first steps, which warm caches


class Pace:
    """The factor of the penalty in each step: k in every k-th step, and 0 in the others.

    Over any k steps the factors add up to k, so the gradient is right on average. With a budget, k is chosen
    from the measured times of steps with and without the penalty.
    """

    def __init__(self, every: int = 1, budget: float | None = None):
        check_count("every", every)
        if budget is not None and not (is_number(budget) and 1 < budget < float("inf")):
            raise InputError(f"budget={budget!r}: a step with a penalty costs more than 1; try budget=1.3.")
        if budget is not None and every != 1:
            raise InputError("budget chooses `every` itself: give one of them.")
        self.every, self.budget = every, budget
        self.wait = 0  # steps until the next that pays
        self._calls = 0
        self._started: float | None = None
        self._paid = True  # whether the current step pays
        self.is_unusual = False  # whether the current step takes longer, to verify the model for example
        self._seconds: dict[bool, deque[float]] = {paid: deque(maxlen=REMEMBERED) for paid in (True, False)}

    def factor(self, agreed: Callable[[int], int] = int) -> int:
        """For the step that begins now. `agreed` gives the largest number that any process has."""
        if not tracing():
            self._measure()
        elif self.budget is not None:
            refuse("budget= measures times, which a compiled step cannot do: give every= instead.")
        self._paid = self.wait == 0
        if not self._paid:
            self.wait -= 1
            return 0
        if self.budget is not None:
            self.every = agreed(self._affordable(self.budget))
        self.wait = self.every - 1
        return self.every

    def _measure(self) -> None:
        now = time.perf_counter()
        if self._started is not None and self._calls > SETTLING and not self.is_unusual:
            self._seconds[self._paid].append(now - self._started)
        self._started, self.is_unusual = now, False
        self._calls += 1

    @property
    def cost(self) -> float | None:
        """Time of a step that pays / time of a step that does not; None until both kinds were measured."""
        if any(len(times) < NEEDED for times in self._seconds.values()):
            return None
        # A step after one that pays finds cold caches. The lower quartile is closer to a plain step.
        return median(self._seconds[True]) / quantiles(self._seconds[False])[0]

    def _affordable(self, budget: float) -> int:
        """The smallest k for which (t_with + (k − 1) t_without) / k is at most budget · t_without."""
        if self.cost is None:
            return 2  # every second step, until the times of both kinds are known
        return max(1, math.ceil((self.cost - 1) / (budget - 1) - 1e-9))
