"""The results of the checks of a model, and when the checks are repeated."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..engines.tape import Plan, Tape, Way
from ..pytorch.modules import modules_of
from ..pytorch.precision import is_autocast
from ..pytorch.tracing import inside_torch_func, while_tracing
from .closures import LARGE, ByCode, is_made_anew

Shape = tuple[int, ...]  # the shape of a sample
Kind = tuple[Shape, torch.dtype, str, Any]


@dataclass
class History:
    """What is known of a model in one mode, for each shape of a sample (texts have many lengths).

    A check sees one batch and the current weights. It cannot see a branch whose weights start at zero, and a
    layer can be replaced later. So the check is repeated at the second, fourth, eighth … visit, with whatever
    shape comes then. If it finds something new, the results for all other shapes are dropped.
    """

    visits: int = 0
    evidence: object = field(default_factory=object)  # valid verdicts share it; a new one invalidates them
    verdicts: dict[Shape, Verdict] = field(default_factory=dict)
    plans: dict[Way, Plan] = field(default_factory=dict)  # paths whose products were equal to autograd's

    def visit(self) -> bool:
        """Count a visit, and say whether a check is due."""
        self.visits += 1
        return is_power(self.visits, 2)


@dataclass
class Verdict:
    history: History
    independent: bool = False  # samples do not depend on each other
    layerwise: bool = False  # its calls can be recorded one by one, and the products are equal to autograd's
    reason: str | None = None  # why not, if that is known
    plan: Plan = ()  # the calls that were checked last, and found right
    warned: bool = False  # there was a warning about hooks
    flipped: bool = False  # it was checked whether autograd's graph gives J v
    doubt: str | None = None  # an error of its gradients that is possible and cannot be detected
    refusal: str | None = None  # why autograd's graph does not give J v
    visits: int = 0
    evidence: object = None
    before: tuple[object, ...] | None = None  # the result of the previous check, during a check

    def visit(self) -> bool:
        """Count a visit, and say whether to check everything now."""
        if inside_torch_func():  # nothing can be checked there
            return False
        self.visits += 1
        # If shapes alternate, the same one might miss every check. So each shape has its own count as well.
        is_due = (
            self.history.visit() | is_power(self.visits, 8) | (self.evidence is not self.history.evidence)
        )
        if is_due:
            self._begin()
        return is_due

    def learn(self, reason: str | None, tape: Tape | None = None) -> None:
        """Keep the result of a check: the reason why calls cannot be recorded, or the calls on the tape."""
        self.layerwise, self.reason, plans = reason is None, reason, self.history.plans
        if len(plans) > MOST:
            plans.clear()
        if tape is not None:
            self.plan = plans.setdefault(tape.way, tape.plan)  # plans can be long, so shapes share one object

    def settle(self) -> None:
        """The check has ended without an error."""
        if self.before == self._found():
            self.history.evidence = self.evidence
        self.evidence, self.before = self.history.evidence, None

    def _begin(self) -> None:
        self.before = None
        if self.evidence is self.history.evidence:  # else the verdict is only brought up to date
            self.before, self.history.evidence = self._found(), object()
            self.history.plans.clear()
        self.independent = self.layerwise = self.flipped = False
        self.reason = self.refusal = None

    def _found(self) -> tuple[object, ...]:
        return self.layerwise, self.refusal


MOST = 64  # modes of a model, and paths through it, so that those that never repeat do not fill the memory
MOST_SHAPES = 1024  # enough for texts of many lengths
_histories: weakref.WeakKeyDictionary[Any, dict[Any, History]] = weakref.WeakKeyDictionary()
known_to_code: ByCode[dict[Any, History]] = ByCode(dict)


def is_power(n: int, base: int) -> bool:
    """Whether n is a power of `base`.

    >>> [n for n in range(1, 100) if is_power(n, 8)]
    [1, 8, 64]
    """
    while n % base == 0:
        n //= base
    return n == 1


def kind(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kind:
    """The kind of a batch. Batches of one kind differ only in their values and in the number of samples."""
    return tuple(int(n) for n in x.shape[1:]), x.dtype, x.device.type, _what((args, kwargs))


def _what(value: Any) -> Any:
    """The kind of an argument. Switches and axes change which calls the model makes; other values do not."""
    if isinstance(value, tuple | list):
        return tuple(map(_what, value))
    if isinstance(value, dict):
        return tuple((name, _what(item)) for name, item in value.items())
    is_switch = isinstance(value, bool | str | None) or (isinstance(value, int) and abs(value) < LARGE)
    return value if is_switch else Tensor if isinstance(value, Tensor) else type(value)  # or a Parameter


def verdict(model: Any, kind: Kind, *section: str | None) -> Verdict:
    """The results of earlier runs of this section of the model, in this mode, on batches of this kind."""
    shape, *rest = kind
    history = _history(model, (is_autocast(kind[2]), *rest, *section))
    if len(history.verdicts) > MOST_SHAPES:
        history.verdicts.clear()
    return history.verdicts.setdefault(shape, Verdict(history))


def _history(model: Any, how: tuple[Any, ...]) -> History:
    # A bound method is a new object at each access; its instance is always the same.
    owner, what = getattr(model, "__self__", model), getattr(model, "__func__", None)
    if isinstance(owner, Tensor):  # tensors compare elements, not identities
        return History()
    try:
        known = known_to_code(model) if is_made_anew(model) else _histories.setdefault(owner, {})
        if len(known) > MOST:
            known.clear()
        return known.setdefault((what, _modes(model), *how), History())
    except TypeError:  # it cannot be hashed or weakly referenced, so it is checked each time
        return History()


def _modes(model: Any) -> int:
    """Which modules behind the model are in training mode."""
    modes, waiting = dict[int, bool](), list(modules_of(model).values())
    while waiting:
        module = waiting.pop()
        if id(module) not in modes:
            modes[id(module)] = module.training
            waiting += filter(None, module._modules.values())
    return hash(tuple(modes.values()))


@while_tracing
def known_plan(model: Any, kind: Kind) -> Plan | None:
    known = verdict(model, kind, None, None, str(False))
    return known.plan if known.layerwise and known.independent else None
