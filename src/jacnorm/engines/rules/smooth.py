"""Smooth functions of each number by itself.

F multiplies with the slope f′ and is its own transpose. The slope is a function of x, or of y = f(x) if that
is simpler; autograd also keeps y. The gradient of ⟨c, f′ t⟩ in x (or y) is c t times the derivative of the
slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .table import MISSING, Call, NoRule, rule

aten = torch.ops.aten
Function = Callable[[Tensor], Tensor]
Scaling = Callable[[Tensor, Tensor], Tensor]


def elementwise(
    read: Tensor,
    slope: Function,
    bend: Function,
    times_slope: Scaling | None = None,
    times_bend: Scaling | None = None,
    y: Any = MISSING,
) -> Call:
    """`slope` is f′ and `bend` its derivative, both as functions of `read` (x or y). times_slope(v, read) and
    times_bend(v, read) are cheaper products of these with v. (times_bend may overwrite v.)"""

    def scaled(read: Tensor, v: Tensor) -> Tensor:
        return v * slope(read) if times_slope is None else times_slope(v, read)

    def terms(read: Tensor, c: Tensor, t: Tensor) -> list[Tensor]:
        both = c * t
        return [both.mul_(bend(read)) if times_bend is None else times_bend(both, read)]

    return Call(scaled, scaled, (read,), terms, y=y)


def _real(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise NoRule(f"a function of {x.dtype} numbers")
    return x


# f′ and f″ as functions of x.
OF_INPUT: dict[str, tuple[Function, Function]] = {
    "square": (lambda x: 2 * x, lambda x: torch.full_like(x, 2)),
    "log": (lambda x: 1 / x, lambda x: -1 / x.square()),
    "log2": (lambda x: 1 / (x * math.log(2)), lambda x: -1 / (x.square() * math.log(2))),
    "log10": (lambda x: 1 / (x * math.log(10)), lambda x: -1 / (x.square() * math.log(10))),
    "log1p": (lambda x: 1 / (1 + x), lambda x: -1 / (1 + x).square()),
    "sin": (torch.cos, lambda x: -x.sin()),
    "cos": (lambda x: -x.sin(), lambda x: -x.cos()),
    "sinh": (torch.cosh, torch.sinh),
    "cosh": (torch.sinh, torch.cosh),
    "atan": (lambda x: 1 / (1 + x.square()), lambda x: -2 * x / (1 + x.square()).square()),
    "asin": (lambda x: torch.rsqrt(1 - x.square()), lambda x: x * (1 - x.square()) ** -1.5),
    "acos": (lambda x: -torch.rsqrt(1 - x.square()), lambda x: -x * (1 - x.square()) ** -1.5),
    "asinh": (lambda x: torch.rsqrt(x.square() + 1), lambda x: -x * (x.square() + 1) ** -1.5),
    "acosh": (lambda x: torch.rsqrt(x.square() - 1), lambda x: -x * (x.square() - 1) ** -1.5),
    "atanh": (lambda x: 1 / (1 - x.square()), lambda x: 2 * x / (1 - x.square()).square()),
    "erf": (lambda x: _bell(x), lambda x: -2 * x * _bell(x)),
    "erfc": (lambda x: -_bell(x), lambda x: 2 * x * _bell(x)),
    "softsign": (lambda x: 1 / (1 + x.abs()).square(), lambda x: -2 * x.sign() / (1 + x.abs()) ** 3),
    "tanhshrink": (lambda x: x.tanh().square(), lambda x: 2 * x.tanh() * (1 - x.tanh().square())),
    "logsigmoid": (lambda x: torch.sigmoid(-x), lambda x: -torch.sigmoid(x) * torch.sigmoid(-x)),
}
# f′ and its derivative as functions of y = f(x).
OF_OUTPUT: dict[str, tuple[Function, Function]] = {
    "tanh": (lambda y: 1 - y.square(), lambda y: -2 * y),
    "sigmoid": (lambda y: y * (1 - y), lambda y: 1 - 2 * y),
    "exp": (lambda y: y, torch.ones_like),
    "exp2": (lambda y: y * math.log(2), lambda y: torch.full_like(y, math.log(2))),
    "expm1": (lambda y: y + 1, torch.ones_like),
    "sqrt": (lambda y: 0.5 / y, lambda y: -0.5 / y.square()),
    "rsqrt": (lambda y: -0.5 * y**3, lambda y: -1.5 * y.square()),
    "reciprocal": (lambda y: -y.square(), lambda y: -2 * y),
    "tan": (lambda y: 1 + y.square(), lambda y: 2 * y),
}
ALIASES = {
    "arctan": "atan",
    "arcsin": "asin",
    "arccos": "acos",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "special_expm1": "expm1",
    "special_exp2": "exp2",
    "special_erf": "erf",
    "special_erfc": "erfc",
    "special_log1p": "log1p",
    "special_expit": "sigmoid",
    "log_sigmoid": "logsigmoid",
}
KERNELS = {"tanh": aten.tanh_backward, "sigmoid": aten.sigmoid_backward}


def _bell(x: Tensor) -> Tensor:
    return torch.exp(-x.square()) * (2 / math.sqrt(math.pi))


def _of_input(slope: Function, bend: Function) -> Any:
    return lambda x: elementwise(_real(x), slope, bend)


def _of_output(name: str, slope: Function, bend: Function) -> Any:
    function = getattr(torch, name)

    def apply(x: Tensor) -> Call:
        y = function(_real(x))
        return elementwise(y, slope, bend, KERNELS.get(name), y=y)

    return apply


for _name, _pair in OF_INPUT.items():
    rule(_name, *(alias for alias, name in ALIASES.items() if name == _name))(_of_input(*_pair))
for _name, _pair in OF_OUTPUT.items():
    _names = (_name, *(alias for alias, name in ALIASES.items() if name == _name))
    rule(*_names, runs=True)(_of_output(_name, *_pair))


@rule("gelu")
def gelu(x: Tensor, approximate: str = "none") -> Call:
    return elementwise(
        x,
        torch.empty_like,  # the kernel has it
        _gelu_tanh_bend,
        lambda v, x: aten.gelu_backward(v, x, approximate=approximate),
        _times_gelu_bend if approximate == "none" else None,
    )


def _times_gelu_bend(v: Tensor, x: Tensor) -> Tensor:
    """v φ(x)(2 − x²) with the normal density φ. With z = −x²/2 it is 2/√(2π) · v eᶻ (1 + z)."""
    z = torch.addcmul(_zero(x), x, x, value=-0.5)
    density = z.exp()
    return torch.addcmul(_zero(x), density.addcmul_(density, z), v, value=2 / math.sqrt(2 * math.pi))


def _zero(like: Tensor) -> Tensor:
    return like.new_zeros(())


def _gelu_tanh_bend(x: Tensor) -> Tensor:
    """f = x (1 + tanh z)/2 with z = √(2/π)(x + 0.044715 x³)."""
    beta, kappa = math.sqrt(2 / math.pi), 0.044715
    square = x.square()
    y = torch.tanh(beta * (x + kappa * square * x))
    slope, bend = beta * (1 + 3 * kappa * square), beta * 6 * kappa * x  # of z
    sech = 1 - y.square()
    return sech * (slope + 0.5 * x * (bend - 2 * y * slope.square()))


@rule("silu")
def silu(x: Tensor) -> Call:
    return elementwise(x, torch.empty_like, torch.empty_like, aten.silu_backward, _times_silu_bend)


def _times_silu_bend(v: Tensor, x: Tensor) -> Tensor:
    """v s (1 − s)(2 + x − 2 x s) with s = sigmoid(x)."""
    s = torch.sigmoid(x)
    return aten.sigmoid_backward(v, s).mul_(torch.addcmul(x, x, s, value=-2).add_(2))


@rule("mish")
def mish(x: Tensor) -> Call:
    def bend(x: Tensor) -> Tensor:
        s, y = torch.sigmoid(x), torch.tanh(F.softplus(x))
        sech = 1 - y.square()  # of the softplus
        return sech * s * (2 + x * (1 - s) - 2 * x * y * s)

    return elementwise(x, torch.empty_like, bend, aten.mish_backward)


@rule("softplus")
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Call:
    def bend(x: Tensor) -> Tensor:
        s = torch.sigmoid(beta * x)
        return (beta * s * (1 - s)).masked_fill_(beta * x > threshold, 0)

    return elementwise(x, torch.empty_like, bend, lambda v, x: aten.softplus_backward(v, x, beta, threshold))


@rule("elu")
def elu(x: Tensor, alpha: float = 1.0) -> Call:
    return _elu(x, alpha, 1, 1)


@rule("selu")
def selu(x: Tensor) -> Call:
    return _elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1)


@rule("celu")
def celu(x: Tensor, alpha: float = 1.0) -> Call:
    rounded = torch.tensor(alpha, dtype=torch.float32, device="cpu").item()
    return _elu(x, alpha, 1, 1 / rounded)  # as PyTorch's own derivative


def _elu(x: Tensor, alpha: float, scale: float, rate: float) -> Call:
    """scale·x above zero, scale·alpha·(exp(rate·x) − 1) below."""

    def bend(x: Tensor) -> Tensor:
        return (scale * alpha * rate**2 * torch.exp(rate * x.clamp_max(0))).masked_fill_(x > 0, 0)

    return elementwise(
        x, torch.empty_like, bend, lambda v, x: aten.elu_backward(v, alpha, scale, rate, False, x)
    )


@rule("hardswish")
def hardswish(x: Tensor) -> Call:
    return elementwise(
        x,
        lambda x: torch.where(x.abs() < 3, x / 3 + 0.5, (x >= 3).to(x.dtype)),
        lambda x: (x.abs() < 3).to(x.dtype) / 3,
        None,
    )


@rule("pow", "__pow__", "float_power")
def power(x: Tensor, exponent: Any) -> Call:
    if not isinstance(exponent, int | float):
        raise NoRule(f"a power whose exponent is a {type(exponent).__name__}")
    _real(x)
    k = float(exponent)
    if k == 2:
        return elementwise(x, *OF_INPUT["square"])
    if k in (0.0, 1.0):
        return elementwise(x, lambda x: torch.full_like(x, k), torch.zeros_like)
    return elementwise(x, lambda x: k * x ** (k - 1), lambda x: k * (k - 1) * x ** (k - 2))
