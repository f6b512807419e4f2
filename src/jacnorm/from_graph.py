"""`jacobian_of`: J from a graph of autograd that exists already."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .engines.ancestry import is_linked, names_between
from .engines.batchnorm import Gate
from .engines.recorder import Recorder
from .engines.section import Section
from .errors import InputError
from .linearization import Linearization
from .pytorch.precision import without_autocast
from .recording import one_step
from .trust.checks import check_input, check_output
from .trust.verify import check_independent, refusal

MOST = 1024
# For each graph whose samples were found to be independent: why it has no J v, or None. Keys are its calls.
_shown: dict[Any, str | None] = {}


def jacobian_of(y: Tensor, x: Tensor) -> Linearization:
    """J = ∂y/∂x at each sample, from autograd's graph between two tensors of your training step.

    `y` has shape (B, *output) and `x` (B, *input); the first axis of both is the batch. x must have required
    a gradient when y was computed from it. Returns a `Linearization`.

    Prefer `linearize(model, x)` where you can: it knows every call, so products take less time and memory.
    Here J is one step by autograd, and gradients of penalties are second derivatives of the graph. Fused
    attention and compiled functions have no second derivatives: J then gives only Jᵀu, and J v raises
    `UnsupportedModelError` with the reason. Raises `InputError` if y does not depend on x in the graph, and
    `CoupledSamplesError` if samples depend on each other, as they do in batch norm in training mode.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    >>> x = torch.randn(2, 4, requires_grad=True)
    >>> jacobian_of(model(x), x)
    Linearization((2, 4) -> (2, 3), engine='autograd', reason='from a graph')
    """
    check_input(x)
    check_output(y, x, None)
    if not (x.requires_grad and y.requires_grad and is_linked(x, y)):
        raise InputError(
            "y does not depend on x in autograd's graph: call x.requires_grad_() before y is computed from "
            "it, outside of no_grad, and pass the same tensor object that was used."
        )
    tape = one_step(x, y, Gate())
    section, recorder = Section(None, (), {}, None, None), Recorder(flowing=True, gate=Gate())
    section.first = x
    section.last = section.result = y
    kind = x.shape[1:], y.shape[1:], x.dtype, names_between(x, y)
    with without_autocast(x.device):
        if kind not in _shown and (check_independent(tape, y.detach()) or len(x) == 1):
            if len(_shown) > MOST:
                _shown.clear()
            _shown[kind] = refusal(tape, y, x, torch.finfo(x.dtype).eps)
        for step in tape.steps:
            step.by_autograd.refusal = _shown.get(kind)
    return Linearization(tape, section, y, recorder, "from a graph", _no_part)


def _no_part(_: Tensor) -> Linearization:
    raise InputError(
        "fraction= and J.subset() run the model again on a part of the batch, but a graph has no model. Use "
        "linearize(model, x), or leave fraction= out."
    )
