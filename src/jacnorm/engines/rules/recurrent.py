"""LSTM, GRU and RNN: one step of the tape for each layer and direction.

PyTorch's kernels do not return the gates, and those of cuDNN cannot be differentiated twice. So a layer runs
here, one time after another, and keeps its gates. The gates are results of the call. The gradient of
⟨c, F(t)⟩ arrives at them, and the loss's backward pass carries it further through time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from ...errors import UnsupportedModelError
from ...pytorch.precision import any_autocast_enabled
from ...pytorch.tracing import inside_torch_func, tracing
from ..tape import Parts
from .affine import outer_product
from .cells import Gru, Lstm, Rnn, RnnRelu, before
from .table import Call, NoRule, rule

Cell = Any  # one of the classes of `cells.py`
LayerCall = Callable[..., tuple[Tensor, ...]]


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: Cell, A: Tensor, B: Tensor, a: Any, b: Any, x: Tensor, *states: Any) -> Any:
        ys = kind.run(F.linear(x, A, a), B, b, *states)
        ctx.kind, ctx.count = kind, len(states)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, A, B, *states, *ys)
        return ys

    @staticmethod
    def backward(ctx: Any, *cs: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise UnsupportedModelError(
                "J.output is differentiated twice, and the model has a recurrent layer. Take the derivative "
                "of model(x) itself, or of J by its products."
            )
        x, A, B, *known = ctx.saved_tensors
        at_p, at_r, at_states, _ = ctx.kind(B, *known).pull(*cs)
        found = (
            lambda: outer_product(at_p, x),
            lambda: outer_product(at_r, before(known[0], known[ctx.count])),
            lambda: at_p.sum((0, 1)),
            lambda: at_r.sum((0, 1)),
            lambda: at_p @ A,
        )
        wanted = zip(ctx.needs_input_grad[1:6], found, strict=True)
        return None, *[find() if wants else None for wants, find in wanted], *at_states


def _layer(name: str, kind: Cell, count: int) -> LayerCall:
    """The layer as a call that can be recorded. `count` is the number of its states."""

    def layer(x: Tensor, *rest: Tensor | None) -> Any:
        """`rest` are the states at the start and A, B, a, b."""
        if has_torch_function((x,)):
            return handle_torch_function(layer, (x,), x, *rest)
        return _Layer.apply(kind, *rest[count:], x, *rest[:count])

    layer.__name__ = name
    rule(name, data=1 + count, product=True, parts=True)(partial(_derivative, kind))
    return layer


def _derivative(kind: Cell, followed: Sequence[bool], ys: Any, x: Tensor, *rest: Any) -> Call:
    count, shape = len(followed) - 1, (*x.shape[:2], len(rest[len(followed) - 1]))
    A, B = rest[count : count + 2]
    size = count + len(ys)  # of what is known of the cell

    def pulled(B: Tensor, known: Any, c: Parts) -> Any:
        """The cell and what it makes of c. (c keeps them for `meet`, which gets the same c.)"""
        kept = vars(c)
        if "pulled" not in kept:
            cell = kind(B, *known)
            kept["pulled"] = cell, cell.pull(*c)
        return kept["pulled"]

    def into(A: Tensor, tx: Tensor | None) -> Tensor:
        return A.new_zeros(shape) if tx is None else F.linear(tx, A)

    def push(A: Tensor, B: Tensor, *values: Any) -> Parts:
        known, (tx, *ts) = values[:size], values[size:]
        return Parts(kind(B, *known).push(into(A, tx), *ts)[: len(ys)])

    def pull(A: Tensor, B: Tensor, *values: Any) -> list[Tensor | None]:
        *known, c = values
        _, (at_p, _, at_states, _) = pulled(B, known, c)
        return [at_p @ A if followed[0] else None, *at_states]

    def meet(A: Tensor, B: Tensor, *values: Any) -> Any:
        known, c, (tx, *ts) = values[:size], values[size], values[size + 1 :]
        cell, back = pulled(B, known, c)
        pushed = cell.push(into(A, tx), *ts)
        in_A = None if tx is None else outer_product(back[0], tx)
        in_B = outer_product(back[1], before(ts[0], pushed[0]))
        return Parts(pushed[: len(ys)]), [in_A, in_B, *cell.terms(back, pushed, ts)]

    return Call(push, pull, (A, B, *rest[:count], *ys), lambda *values: meet(*values)[1], meet)


def _recurrent(
    layer: LayerCall,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> list[Tensor]:
    """The output, and the last of each state."""
    ways, each = 1 + bidirectional, 4 if biases else 2
    _check(x, 3, states, weights, layers * ways * each)
    ends: list[list[Tensor]] = [[] for _ in states]
    y = x.transpose(0, 1) if batch_first else x
    for k in range(layers):
        found = []
        for way in range(ways):
            at = k * ways + way
            mine = [*weights[each * at : each * (at + 1)], None, None][:4]
            results = layer(y.flip(0) if way else y, *[s[at] for s in states], *mine)
            found.append(results[0].flip(0) if way else results[0])
            for end, result in zip(ends, results, strict=False):
                end.append(result[-1])
        y = found[0] if ways == 1 else torch.cat(found, -1)
        if dropout and training and k < layers - 1:
            y = F.dropout(y, dropout)
    return [y.transpose(0, 1) if batch_first else y, *[torch.stack(end) for end in ends]]


def _check(x: Tensor, dims: int, states: Any, weights: Any, count: int) -> None:
    if isinstance(states, Tensor) or isinstance(weights, Tensor):
        raise NoRule("packed sequences")
    if len(weights) != count:
        raise NoRule("a recurrent layer with proj_size=")
    if tracing() or inside_torch_func() or any_autocast_enabled():
        raise NoRule("a recurrent layer under torch.compile, torch.func or autocast")
    if len({t.dtype for t in (x, *states, *weights) if t is not None}) > 1:
        raise NoRule("a recurrent layer in mixed precision")
    if x.numel() == 0 or x.dim() != dims:
        raise NoRule(f"a recurrent layer of an input of shape {tuple(x.shape)}")


def _enter(name: str, layer: LayerCall, listed: Callable[[Any], Any]) -> None:
    """The rules of a layer and of its cell. `listed` makes a sequence of its states."""

    def many(x: Tensor, states: Any, weights: Any, *options: Any) -> tuple[Tensor, ...]:
        return tuple(_recurrent(layer, x, listed(states), weights, *options))

    def one(x: Tensor, states: Any, *weights: Tensor | None) -> Any:
        _check(x, 2, listed(states), weights, 4)
        results = layer(x[None], *listed(states), *weights)
        ends = tuple(result[0] for result in results[: len(listed(states))])
        return ends if len(ends) > 1 else ends[0]

    rule(name, composed=True)(many)
    rule(f"{name}_cell", composed=True)(one)


_enter("lstm", _layer("lstm_layer", Lstm, 2), lambda states: states)
_enter("gru", _layer("gru_layer", Gru, 1), lambda state: [state])
_enter("rnn_tanh", _layer("rnn_layer", Rnn, 1), lambda state: [state])
_enter("rnn_relu", _layer("rnn_relu_layer", RnnRelu, 1), lambda state: [state])
