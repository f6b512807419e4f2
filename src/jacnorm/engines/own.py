"""Rules of the user, for functions and kernels of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, Function
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..errors import InputError, UnsupportedModelError
from ..pytorch.tracing import tracing
from ..trust.checks import check_count
from .rules.table import MISSING, RULES, Call, NoRule, Rule

Target = TypeVar("Target", bound=Callable[..., Any])


def rule(call: Callable[..., Call], *, data: int = 1) -> Callable[[Target], Target]:
    """Register the derivative of a function of your own, so that J uses this rule. Use it as a decorator.

    call
        A function with the same arguments as yours. It returns a `Call`: the derivative at this point, its
        transpose, and the tensors that both read.
    data
        How many of the first arguments may depend on the model's input. If it is more than one, `pull`
        returns a list. If any other argument depends on the input, the call is computed by autograd.

    Returns a decorator. It takes a function of tensors that returns one tensor, or a
    `torch.autograd.Function` whose `apply` your model calls. Raises `InputError` for anything else.

    When a model is verified, the rule is compared with autograd. If it is wrong, autograd replaces it from
    then on, and `J.reason` says so. Outside of `linearize` the function does not change.

    >>> def squares(x, weight):
    ...     return Call(
    ...         push=lambda x, weight, t: 2 * weight * x * t,
    ...         pull=lambda x, weight, c: 2 * weight * x * c,
    ...         reads=(x, weight),
    ...         terms=lambda x, weight, c, t: [2 * weight * c * t, (2 * x * c * t).sum(0)],
    ...     )
    >>> @rule(squares)
    ... def weighted_square(x, weight):
    ...     return weight * x**2
    >>> from jacnorm import linearize
    >>> weight = torch.tensor([1.0, 2.0])
    >>> J = linearize(lambda x: weighted_square(x, weight), torch.tensor([[3.0, 5.0]]))
    >>> J.dense().detach()
    tensor([[[ 6.,  0.],
             [ 0., 20.]]])
    """
    check_count("data", data)
    if not callable(call):
        raise InputError(f"A rule is a function that returns a Call, found {type(call).__name__}.")

    def give(function: Target) -> Target:
        if isinstance(function, type) and issubclass(function, Function):
            _give_class(function, call, data)
            return function
        if isinstance(function, type) or not callable(function) or isinstance(function, torch.nn.Module):
            raise InputError(
                f"A rule is for a function of tensors or a torch.autograd.Function, found {function!r}. "
                "For a module, give it to the function that its forward calls."
            )
        seen = wraps(function)(_seen(function, call, data, _name(function)))
        return seen  # type: ignore[return-value]

    return give


def _give_class(function: type[Function], call: Callable[..., Call], data: int) -> None:
    plain: Any = function.apply
    seen = _seen(plain, call, data, _name(function))

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return seen(*args, **kwargs) if cls is function else plain.__func__(cls, *args, **kwargs)

    function.apply = classmethod(apply)  # type: ignore[assignment]


def _seen(plain: Any, call: Callable[..., Call], data: int, name: str) -> Any:
    """The function, which offers itself to a recorder, as functions of PyTorch do."""

    def seen(*args: Any, **kwargs: Any) -> Any:
        if tracing() or not has_torch_function((*args, *kwargs.values())):
            return plain(*args, **kwargs)
        if kwargs:
            args, kwargs = _in_order(plain, args, kwargs)
        return handle_torch_function(seen, (*args, *kwargs.values()), *args, **kwargs)

    seen.own_name = name  # type: ignore[attr-defined]
    RULES[name] = Rule(partial(_apply, plain, call), data=data, own=plain)
    return seen


def _apply(plain: Any, call: Callable[..., Call], *args: Any, **kwargs: Any) -> Call:
    try:
        made = call(*args, **kwargs)
    except Exception as error:
        raise NoRule(f"its rule failed with {type(error).__name__}: {error}") from error
    if not isinstance(made, Call):
        raise NoRule(f"its rule returned {type(made).__name__}, not a Call")
    if made.y is MISSING:
        made.y = plain(*args, **kwargs)
    if not isinstance(made.y, Tensor):
        raise NoRule(f"it returned {type(made.y).__name__}, and rules are for one tensor")
    return made


def take_back(name: str, why: str) -> None:
    def apply(*_: Any, **__: Any) -> Call:
        raise NoRule(why)

    RULES[name] = replace(RULES[name], apply=apply)


def _name(function: Any) -> str:
    """The name of a user's function. It has a dot, unlike names of PyTorch's functions. A function that is
    defined again gets a new number."""
    name = f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"
    count = sum(known == name or known.startswith(f"{name} #") for known in RULES)
    return f"{name} #{count + 1}" if count else name


def _in_order(function: Any, args: Any, kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the function itself will raise the error
        return args, kwargs
    return bound.args, bound.kwargs


# The check of gradients. F and Fᵀ are compared in `checking.py`. ------------------------------------------


def wrong_gradient(
    own: Rule,
    run: partial[Any],
    followed: Sequence[Tensor],
    c: Tensor,
    ts: Sequence[Tensor],
    tolerance: float,
) -> str | None:
    """The error if the gradient of ⟨c, F(t)⟩ differs from autograd's, or None. None also if it is unknown.

    `followed` are the arguments that depend on the model's input, and `ts` their tangents.
    """
    given, spec = tree_flatten((run.args, run.keywords))
    leaves = {id(t): _leaf(t) for t in given if isinstance(t, Tensor) and t.is_floating_point()}
    args, kwargs = tree_unflatten([leaves.get(id(t), t) for t in given], spec)
    tangents = {id(t): tangent for t, tangent in zip(followed, ts, strict=True)}
    data = [*run.args[: own.data], *[None] * (own.data - len(run.args))]
    values = [tangents.get(id(a)) for a in data]
    with torch.enable_grad():
        call = own.apply(*args, **kwargs)
        reads = list(call.reads)
        ours = _by_terms(call, reads, c, values)
        by_push = _by_push(call, reads, c, values)
        if ours is None:
            ours = by_push
        elif by_push is not None and _differ(ours, by_push, tolerance):
            return "its terms are not the gradient of ⟨c, F(t)⟩"
        theirs = _by_autograd(own, args, kwargs, [leaves[id(t)] for t in followed], ts, c, [*leaves.values()])
        if ours is None or theirs is None:
            return None
        pairs = [(r, g) for r, g in zip(reads, ours, strict=True) if g is not None and r.requires_grad]
        total = (
            _gradients([r for r, _ in pairs], [*leaves.values()], [g for _, g in pairs]) if pairs else None
        )
        total = total or [None] * len(theirs)
    is_wrong = _differ(_filled(total, leaves.values()), theirs, tolerance)
    return "the gradient of its products is not autograd's" if is_wrong else None


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_()


def _by_terms(call: Call, reads: Any, c: Tensor, ts: Any) -> list[Tensor | None] | None:
    return None if call.terms is None else list(call.terms(*[r.detach() for r in reads], c, *ts))


def _by_push(call: Call, reads: Any, c: Tensor, ts: Any) -> list[Tensor | None] | None:
    """The gradients by differentiating `push`, or None if autograd cannot differentiate it."""
    alone = [_leaf(r) if r.is_floating_point() else r for r in reads]
    if not alone:
        return []
    y = call.push(*alone, *ts)
    return _gradients([y], alone, [c]) if y.requires_grad else None


def _by_autograd(
    own: Rule, args: Any, kwargs: Any, xs: Any, ts: Any, c: Tensor, leaves: Any
) -> list[Tensor | None] | None:
    """Autograd's gradients, or None if they are unreliable: a custom backward pass may hide dependencies."""
    y = own.own(*args, **kwargs)
    if _has_own_backward(y):
        return None
    pulled = _gradients([y], xs, [c], create_graph=True)
    if pulled is None:
        return None
    pairs = [(g, t) for g, t in zip(pulled, ts, strict=True) if g is not None and g.requires_grad]
    nothing: list[Tensor | None] = [None] * len(leaves)
    found = _gradients([g for g, _ in pairs], leaves, [t for _, t in pairs]) if pairs else nothing
    return None if found is None else _filled(found, leaves)


def _filled(found: Any, like: Any) -> list[Tensor | None]:
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, like, strict=True)]


def _has_own_backward(y: Tensor) -> bool:
    seen, waiting = set[Any](), [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if isinstance(node, BackwardCFunction):
            return True
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [parent for parent, _ in node.next_functions]
    return False


def _gradients(ys: Any, xs: Any, cs: Any, create_graph: bool = False) -> list[Tensor | None] | None:
    try:
        return list(
            torch.autograd.grad(ys, xs, cs, create_graph=create_graph, retain_graph=True, allow_unused=True)
        )
    except (RuntimeError, UnsupportedModelError):
        return None


def _differ(ours: Sequence[Tensor | None], theirs: Sequence[Tensor | None], tolerance: float) -> bool:
    """Where both are known."""
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    if any(a.shape != b.shape for a, b in pairs):
        return True
    size = max((max(float(a.norm()), float(b.norm())) for a, b in pairs), default=0.0)
    return any(float((a - b).norm()) > tolerance * size for a, b in pairs)
