"""What checks of a model have shown so far, and when it is checked again."""

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

Shape = tuple[int, ...]  # of a sample
Kind = tuple[Shape, torch.dtype, str, Any]


@dataclass
class History:
    """Of a model in one mode: what is known of it by the shape of its samples, texts of many lengths, say.

    A check looks at one batch and at the weights of the day: a branch that starts at zero hides in it, and
    a layer can be exchanged. So whichever shape comes by at the second, fourth, eighth … visit is checked
    again. If that shows something new, what is known of the others is worth nothing either.
    """

    visits: int = 0
    evidence: object = field(default_factory=object)  # that verdicts share; a new one ends that of the old
    verdicts: dict[Shape, Verdict] = field(default_factory=dict)
    plans: dict[Way, Plan] = field(default_factory=dict)  # of ways whose products are autograd's

    def visit(self) -> bool:
        """Whether a check is due."""
        self.visits += 1
        return is_power(self.visits, 2)


@dataclass
class Verdict:
    history: History
    independent: bool = False  # samples do not see each other
    layerwise: bool = False  # its calls can be recorded one by one, and the products are autograd's
    reason: str | None = None  # why not, where that is known
    plan: Plan = ()  # the calls that were checked last, and found right
    warned: bool = False  # of hooks
    flipped: bool = False  # autograd's graph was asked for J v ...
    doubt: str | None = None  # what may be wrong with it and cannot be found out
    refusal: str | None = None  # ... and this is why it cannot give that
    visits: int = 0
    evidence: object = None
    before: tuple[object, ...] | None = None  # while a check goes on: what the last one found

    def visit(self) -> bool:
        """Whether to check everything now."""
        if inside_torch_func():  # where nothing can be checked
            return False
        self.visits += 1
        # Shapes that take turns might come by when it is another's turn; so each has its own, too.
        is_due = (
            self.history.visit() | is_power(self.visits, 8) | (self.evidence is not self.history.evidence)
        )
        if is_due:
            self._begin()
        return is_due

    def learn(self, reason: str | None, tape: Tape | None = None) -> None:
        """What a check has shown: why calls cannot be recorded one by one, or which they are."""
        self.layerwise, self.reason, plans = reason is None, reason, self.history.plans
        if len(plans) > MOST:
            plans.clear()
        if tape is not None:
            self.plan = plans.setdefault(tape.way, tape.plan)  # one object for all shapes: they can be long

    def settle(self) -> None:
        """The check is over, and has raised nothing."""
        if self.before == self._found():
            self.history.evidence = self.evidence
        self.evidence, self.before = self.history.evidence, None

    def _begin(self) -> None:
        self.before = None
        if self.evidence is self.history.evidence:  # else it is only brought up to date
            self.before, self.history.evidence = self._found(), object()
            self.history.plans.clear()
        self.independent = self.layerwise = self.flipped = False
        self.reason = self.refusal = None

    def _found(self) -> tuple[object, ...]:
        return self.layerwise, self.refusal


MOST = 64  # modes of a model, and ways through it: what never repeats must not fill the memory
MOST_SHAPES = 1024  # as many lengths as texts may have
_histories: weakref.WeakKeyDictionary[Any, dict[Any, History]] = weakref.WeakKeyDictionary()
known_to_code: ByCode[dict[Any, History]] = ByCode(dict)


def is_power(n: int, base: int) -> bool:
    """
    >>> [n for n in range(1, 100) if is_power(n, 8)]
    [1, 8, 64]
    """
    while n % base == 0:
        n //= base
    return n == 1


def kind(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kind:
    """Batches of one kind differ in their values alone, and in their length."""
    return tuple(int(n) for n in x.shape[1:]), x.dtype, x.device.type, _what((args, kwargs))


def _what(value: Any) -> Any:
    """Of an argument: switches and axes decide what a model computes, other things only its numbers."""
    if isinstance(value, tuple | list):
        return tuple(map(_what, value))
    if isinstance(value, dict):
        return tuple((name, _what(item)) for name, item in value.items())
    is_switch = isinstance(value, bool | str | None) or (isinstance(value, int) and abs(value) < LARGE)
    return value if is_switch else Tensor if isinstance(value, Tensor) else type(value)  # or a Parameter


def verdict(model: Any, kind: Kind, *section: str | None) -> Verdict:
    """What earlier runs of this section of the model have shown, in this mode, on batches of this kind."""
    shape, *rest = kind
    history = _history(model, (is_autocast(kind[2]), *rest, *section))
    if len(history.verdicts) > MOST_SHAPES:
        history.verdicts.clear()
    return history.verdicts.setdefault(shape, Verdict(history))


def _history(model: Any, how: tuple[Any, ...]) -> History:
    # A bound method is a new object each time it is looked up; its instance is not.
    owner, what = getattr(model, "__self__", model), getattr(model, "__func__", None)
    if isinstance(owner, Tensor):  # which compares elements, not objects
        return History()
    try:
        known = known_to_code(model) if is_made_anew(model) else _histories.setdefault(owner, {})
        if len(known) > MOST:
            known.clear()
        return known.setdefault((what, _modes(model), *how), History())
    except TypeError:  # cannot be hashed or weakly referenced: looked at each time
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
