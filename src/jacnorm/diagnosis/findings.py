"""Facts that a user should know about a model before training it with a penalty."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..linearization import Linearization
from ..penalties import SpectralPenalty
from ..pytorch.modules import named_parameters
from .examiner import Call

MANY_DEAD = 0.5
Gradients = list[tuple[str, Tensor | None, Tensor | None]]  # name, gradient of the loss, of the penalty


def findings(
    J: Linearization, calls: Sequence[Call], modules: dict[str, nn.Module], random: bool, of: Gradients
) -> list[str]:
    training = any(m.training for m in modules.values())
    found = [
        *_about_batch_norm(calls),
        *_about_randomness(random, training),
        *_about_gradients(of),
        *_about_functions(J),
        *_about_stops(calls),
        *_about_dead_units(calls),
        *_about_shared_weights(J),
        *_about_compilation(modules),
    ]
    if not training and any(_differs_in_training(m) for root in modules.values() for m in root.modules()):
        found.append("This was evaluation mode. Dropout and batch norm differ in training: look there, too.")
    return found


def gradients(J: Linearization, modules: dict[str, nn.Module]) -> Gradients:
    """The gradients of a loss and of the penalty in every parameter that requires a gradient."""
    named = [(name, p) for name, p in named_parameters(modules) if p.requires_grad]
    scalars = J.output.square().mean(), SpectralPenalty()(J)
    found = [
        torch.autograd.grad(s, [p for _, p in named], retain_graph=True, allow_unused=True)
        if named and s.requires_grad
        else [None] * len(named)
        for s in scalars
    ]
    return [(name, *pair) for (name, _), pair in zip(named, zip(*found, strict=True), strict=True)]


def _about_batch_norm(calls: Sequence[Call]) -> Iterator[str]:
    if count := sum(call.training for call in calls):
        yield (
            f"{_times(count, 'batch norm')} in training mode. For the Jacobian the batch's statistics are "
            "constants, so no sample depends on another; the loss trains as always. Measure σ in evaluation "
            "mode, which uses the running statistics."
        )


def _about_randomness(random: bool, training: bool) -> Iterator[str]:
    if random:
        measure = ", and measure σ in evaluation mode" if training else ""
        yield (
            "It draws random numbers (dropout, stochastic depth, noise). Output and J share each draw: the "
            f"penalty belongs to the network that was drawn, which is right for training{measure}."
        )


def _about_gradients(of: Gradients) -> Iterator[str]:
    unused = [name for name, loss, _ in of if loss is None]
    seen = [(name, penalty) for name, loss, penalty in of if loss is not None]
    blind = [name for name, penalty in seen if _nothing(penalty) and not name.endswith("bias")]
    if unused:
        yield f"These parameters play no part in the output: {_some(unused)}."
    if blind:
        yield (
            f"The penalty has no gradient in these parameters, though the loss does: {_some(blind)}. The "
            "Jacobian does not depend on them here."
        )


def _about_functions(J: Linearization) -> Iterator[str]:
    if J.doubt is not None:
        yield J.doubt


def _about_stops(calls: Sequence[Call]) -> Iterator[str]:
    for call in _one_each([call for call in calls if call.rule == "constant"]):
        yield f"{call.name} ends the gradient ({call.where}): J ignores the paths through it."


def _about_dead_units(calls: Sequence[Call]) -> Iterator[str]:
    for call in calls:
        if call.dead >= MANY_DEAD:
            yield f"{call.dead:.0%} of the ReLUs are zero for every sample ({call.where})."


def _about_shared_weights(J: Linearization) -> Iterator[str]:
    weights = [id(layer.weight) for layer in J.layers]
    if count := sum(weights.count(w) > 1 for w in set(weights)):
        yield (
            f"Weights that are used more than once: {count}. J is right; product_bound counts every use, "
            "SpectralBoundPenalty each weight once."
        )


def _about_compilation(modules: dict[str, nn.Module]) -> Iterator[str]:
    if any(_is_compiled(m) for root in modules.values() for m in root.modules()):
        yield (
            "It is compiled. linearize runs it uncompiled, to see its calls. Compile the function that "
            "calls linearize and the penalty instead (docs/trainers.md)."
        )


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def _one_each(calls: Sequence[Call]) -> list[Call]:
    """One call per line of code: the first."""
    return list({(call.name, call.line or call.layer): call for call in reversed(calls)}.values())[::-1]


def _nothing(gradient: Tensor | None) -> bool:
    return gradient is None or not bool(gradient.any())


def _differs_in_training(module: nn.Module) -> bool:
    kinds: Any = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return isinstance(module, kinds)


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", … ({len(names)})" if len(names) > 3 else "")
