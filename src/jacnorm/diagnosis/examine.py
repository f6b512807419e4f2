"""`doctor`: run the model, record its calls, try a training step, and report the findings."""

from __future__ import annotations

import traceback
import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CoupledSamplesError, JacnormError, NonFiniteError, UnsupportedModelError
from ..linearization import Linearization
from ..pytorch.modules import modules_of, paths, random_state, unchanged
from ..pytorch.outputs import Output
from ..recording import linearize
from ..trust.checks import check_input
from .cost import step_cost
from .examiner import Call, Examiner, place, where
from .findings import findings, gradients
from .report import Diagnosis

RUNS = 3


def doctor(model: Any, x: Tensor, *, at: str | None = None, output: Output = None) -> Diagnosis:
    """Examine how jacnorm handles `model` on a batch like `x`. Print the result to read it.

    The result says for each call which kind of rule applies, or why it is computed by autograd. It gives the
    cost of a training step with `SpectralPenalty`, and warnings. The model is examined in the mode that it is
    in, and its state is restored.

    model
        A module, or any function of x.
    x
        A batch, (B, *input), like the batches of training.
    at, output
        As in `linearize`: the layer at which J begins (an embedding, for tokens), and the output that J is
        the Jacobian of.

    Returns a `Diagnosis`. If the model fails or cannot be linearized, no error is raised: `problem` says why.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = doctor(model, torch.randn(16, 4))
    >>> found.served, found.engine, [call.name for call in found.calls]
    (True, 'layerwise', ['linear', 'relu', 'linear'])
    """
    found = examine(model, x, at, output)
    return replace(found, cost=step_cost(model, x, at, output)) if found.served else found


def examine(model: Any, x: Tensor, at: str | None = None, output: Output = None) -> Diagnosis:
    """The diagnosis without the cost, which takes longer."""
    check_input(x, at, model)
    modules = modules_of(model)
    found = Diagnosis(
        name=getattr(model, "__name__", type(model).__name__),
        training=any(m.training for m in modules.values()) if modules else None,
        input_shape=x.shape,
    )
    with unchanged(modules, x.device), torch.inference_mode(False), torch.enable_grad():
        x = x.detach().clone()
        examiner = Examiner(x, paths(modules), at, output)
        try:
            with warnings.catch_warnings(action="ignore"):  # the findings include these warnings
                J = linearize(model, x, at=at, output=output)
        except Exception as error:  # the task is to explain any error of a model
            with suppress(Exception):  # the same error again; the calls before it are needed
                examiner.run(model)
            return replace(found, calls=examiner.calls, problem=_explained(error, examiner))
        before = random_state(x.device)
        examiner.run(model)
        random = not torch.equal(before, random_state(x.device))
        calls = _quickest(examiner, model)
        found = replace(found, calls=calls, output_shape=J.output_shape, engine=J.engine, reason=J.reason)
        found = replace(found, at=at, chosen=J.chosen)
        return _tried(found, J, modules, random)


def _tried(found: Diagnosis, J: Linearization, modules: dict[str, nn.Module], random: bool) -> Diagnosis:
    """Try products and their gradients, as a training step needs them."""
    try:
        with torch.no_grad():  # J v fails here with an explanation; in backward() it would fail without one
            J.jvp(torch.zeros(J.input_shape, dtype=J.dtype, device=J.device))
        of = gradients(J, modules)
    except UnsupportedModelError as error:
        return replace(found, problem=str(error))
    if broken := [name for name, _, g in of if g is not None and not torch.isfinite(g).all()]:
        return replace(found, problem=_not_finite(broken))
    return replace(found, warnings=findings(J, found.calls, modules, random, of))


def _quickest(first: Examiner, model: Any) -> list[Call]:
    """The calls, each with its shortest time from a few runs, because other programs may disturb a run."""
    calls = first.calls
    for _ in range(RUNS - 1):
        again = first.another()
        again.run(model)
        if [c.name for c in again.calls] == [c.name for c in calls]:  # it may make other calls this time
            pairs = zip(calls, again.calls, strict=True)
            calls = [replace(a, seconds=min(a.seconds, b.seconds)) for a, b in pairs]
    return calls


def _explained(error: Exception, examiner: Examiner) -> str:
    """The error message, and where it occurred."""
    if isinstance(error, CoupledSamplesError):
        return str(error) + _after(examiner.first_coupled())
    if isinstance(error, NonFiniteError):
        return str(error) + _after(next((call for call in examiner.calls if not call.finite), None))
    text = str(error) if isinstance(error, JacnormError) else f"{type(error).__name__}: {error}"
    frames = traceback.walk_tb((error.__cause__ or error).__traceback__)
    layer, line = place(reversed(list(frames)), examiner.paths)
    return f"{text.rstrip('.')}. It failed here: {where(layer, line)}." if layer or line else text


def _after(call: Call | None) -> str:
    return "" if call is None else f" It first shows after {call.name} ({call.where})."


def _not_finite(names: list[str]) -> str:
    more = f" and {len(names) - 1} more parameters" if len(names) > 1 else ""
    return (
        f"The penalty's gradient is NaN or inf in {names[0]}{more}. "
        "Look for a second derivative that is infinite: a root or a norm at zero, a power below 2."
    )
