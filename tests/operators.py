"""PyTorch's own lists of operators and modules, each as a model; and the page that says how each is served.

`make operators` writes docs/operators.md.
"""

from __future__ import annotations

import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import jacnorm as jn
from jacnorm.engines.recorder import NO_WAY
from jacnorm.engines.rules import RULES

SAMPLES = 3  # of each operator
LOOKED_AT = 60  # of the database's samples, to choose from
LARGEST = 20_000  # numbers in x
ROWS = 16  # of the Jacobian; longer results are mixed down to so many
DEVICE = torch.get_default_device().type

# Nothing to compare with, and why.
SKIPPED = {
    **dict.fromkeys(("sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse"), "sparse tensors"),
    **dict.fromkeys(("half", "bfloat16", "float", "cfloat", "chalf"), "another precision than the oracle's"),
    "nn.functional.batch_norm": "the statistics of a batch are constants to J, not to autograd",
    "as_strided_scatter": "PyTorch's own derivative is wrong (gradcheck)",
    "linalg.eig": "the phase of eigenvectors is free: PyTorch refuses the second derivative",
    "nn.Embedding": "it reads whole numbers",
    "__rpow__": "the database's samples are not finite",
}


class Model(nn.Module):
    """The operator on a batch of one. x is scaled by w; w and other arguments learn. Results go in a row."""

    def __init__(self, call: Callable[..., Any], leaves: list[Any], form: Any, *, spread: bool = False):
        super().__init__()
        self.call, self.leaves, self.form, self.spread = call, leaves, form, spread
        learnt = [i for i, t in enumerate(leaves) if _learns(t)]
        self.at, self.learnt = learnt[0], learnt[1:]
        x = leaves[self.at].detach()
        self.x = x[None].clone()
        self.w = nn.Parameter(torch.ones_like(x))
        self.others = nn.ParameterList(nn.Parameter(leaves[i].detach().clone()) for i in self.learnt)
        if isinstance(call, nn.Module):
            self.module = call
        self.mix: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        z = self.w * x[0]
        given = list(self.leaves)
        given[self.at] = z
        for i, p in zip(self.learnt, self.others, strict=True):
            given[i] = p * (1 + 0.01 * z.mean()) if self.spread else p
        args, kwargs = tree_unflatten(given, self.form)
        row = _in_a_row(self.call(*args, **kwargs))
        return row if self.mix is None else F.linear(row, self.mix)

    def mix_down(self, count: int) -> None:
        if count > ROWS:
            generator = torch.Generator(torch.get_default_device()).manual_seed(2)
            self.mix = torch.randn(ROWS, count, dtype=torch.float64, generator=generator) / count**0.5


@dataclass
class Case:
    name: str  # of the operator
    way: str  # which sample, and how it is called
    model: Model

    def __str__(self) -> str:
        return f"{self.name} ({self.way})"

    def run(self, x: Tensor | None = None) -> Tensor:
        torch.manual_seed(3)
        return self.model(self.model.x if x is None else x)

    def linearized(self) -> jn.Linearization:
        torch.manual_seed(3)
        return jn.linearize(self.model, self.model.x)


def _learns(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype == torch.float64 and t.requires_grad


def _in_a_row(results: Any) -> Tensor:
    pieces = []
    for t in tree_leaves(results):
        if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()) and t.requires_grad:
            t = t.to_dense() if t.layout != torch.strided else t
            pieces.append((torch.view_as_real(t.resolve_conj()) if t.is_complex() else t).reshape(-1))
    if not pieces:
        raise NoDerivative
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces))[None]


class NoDerivative(Exception):
    """Nothing in the result depends on the arguments in a way that can be differentiated."""


@cache
def database() -> dict[str, Any]:
    """All differentiable operators and all modules, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    operators = [op for op in op_db if op.supports_autograd and torch.float64 in op.dtypes]
    found = {".".join(filter(None, (op.name, op.variant_test_name))): op for op in operators}
    return found | {f"nn.{info.module_cls.__name__}": info for info in module_db}


def cases(name: str) -> list[Case]:
    """A few samples; the first of them also in place, as a method, and with all arguments depending on x."""
    entry = database()[name]
    is_module = hasattr(entry, "module_cls")
    found: list[Case] = []
    for sample in _various(_module_samples(entry) if is_module else _operator_samples(entry)):
        if _can_be_compared(case := Case(name, f"sample {len(found) + 1}", Model(*sample))):
            found.append(case)
        if len(found) == SAMPLES:
            break
    if not found:
        return []
    first = found[0].model
    more = (
        [("all depends on x", Model(first.call, first.leaves, first.form, spread=True))]
        if first.learnt
        else []
    )
    if not is_module:
        variants = ("as a method", entry.method_variant), ("in place", entry.inplace_variant)
        more += [(way, Model(call, first.leaves, first.form)) for way, call in variants if call is not None]
    return found + [case for way, model in more if _can_be_compared(case := Case(name, way, model))]


def _can_be_compared(case: Case) -> bool:
    """PyTorch itself makes a finite result of the sample, with a finite derivative."""
    try:
        with torch.enable_grad():
            y = case.run()
            if y.numel() == 0 or not torch.isfinite(y).all():
                return False
            found = torch.autograd.grad(y.sum(), list(case.model.parameters()), allow_unused=True)
    except (NoDerivative, RuntimeError, TypeError):
        return False
    case.model.mix_down(y.numel())
    return all(g is None or bool(torch.isfinite(g).all()) for g in found)


def _operator_samples(op: Any) -> Iterator[tuple[Any, list[Any], Any]]:
    torch.manual_seed(0)
    for sample in op.sample_inputs_func(op, DEVICE, torch.float64, requires_grad=True):
        leaves, form = tree_flatten(((sample.input, *sample.args), sample.kwargs))

        def call(*args: Any, process: Any = sample.output_process_fn_grad, **kwargs: Any) -> Any:
            return process(op.gradcheck_wrapper(op.op, *args, **kwargs))

        yield call, leaves, form


def _module_samples(info: Any) -> Iterator[tuple[Any, list[Any], Any]]:
    torch.manual_seed(0)
    inputs = info.module_inputs_func(info, DEVICE, torch.float64, requires_grad=True, training=False)
    for made in inputs:
        module = (
            info.module_cls(*made.constructor_input.args, **made.constructor_input.kwargs).double().eval()
        )
        given = made.forward_input
        is_batch_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        if given is None or (is_batch_norm and module.running_mean is None):
            continue  # without running statistics it takes the batch's, which are constants to J
        leaves, form = tree_flatten((tuple(given.args), given.kwargs))
        yield module, leaves, form


def _various(samples: Iterator[tuple[Any, list[Any], Any]]) -> list[tuple[Any, list[Any], Any]]:
    """One for each way of calling the operator, from all over the list; then the others."""
    fitting = list(islice((s for s in samples if _fits(s[1])), LOOKED_AT))
    ways: dict[str, Any] = {}
    for sample in fitting:
        ways.setdefault(str((sample[2], [_kind(t) for t in sample[1]])), sample)
    unlike = list(ways.values())
    apart = unlike[:: -(-len(unlike) // SAMPLES) or 1]
    order = {id(sample): sample for sample in (*apart, *unlike, *fitting[::-1])}
    return list(order.values())


def _fits(leaves: list[Any]) -> bool:
    tensors = [t for t in leaves if isinstance(t, Tensor)]
    learnt = [t for t in tensors if _learns(t)]
    return bool(learnt) and 0 < learnt[0].numel() <= LARGEST and all(t.numel() for t in tensors)


def _kind(t: Any) -> Any:
    return (t.dim(), t.dtype) if isinstance(t, Tensor) else t


# How an operator is served. ----------------------------------------------------------------------


def served(J: jn.Linearization) -> tuple[str, str]:
    """By rule, by autograd, as a whole by autograd, without a derivative, or refused; and why."""
    if J.engine == "autograd":
        how, why = "whole", J.reason or ""
        if why == NO_WAY and not J.dense().any():
            return "constant", ""
    else:
        how, why = ("rule", "") if J.reason is None else ("autograd", J.reason.removeprefix("by autograd: "))
    try:
        with torch.no_grad():
            J.jvp(torch.zeros(J.input_shape, dtype=J.dtype))
    except jn.UnsupportedModelError as error:
        return "refused", str(error)
    return how, why


# The page. ----------------------------------------------------------------------------------------

CLASSES = {
    "rule": ("By rule", "There are closed forms of F, of Fᵀ and of the gradient of uᵀJ v."),
    "partly": ("By rule, with exceptions", "The brackets say in which cases autograd takes over."),
    "autograd": ("By autograd", "Only this call is differentiated twice. All others keep their rules."),
    "whole": ("The whole model by autograd", "These calls cannot be recorded one by one."),
    "constant": ("Constants", "Their derivative is zero wherever it exists."),
    "refused": ("Refused", "PyTorch has no second derivative. Jᵀu works, J v and penalties on J do not."),
    "skipped": ("Not compared", "The tests have no reference to compare them with."),
}
HEAD = """# Operators

How does jacnorm differentiate each operator and module in the test databases of PyTorch {version}?
All are compared with autograd, in float64 on the CPU: J, J v, Jᵀu, and the gradient of uᵀJ v in the weights.
[Models and engines](models.md#three-ways-to-serve-a-call) explains the words.
`make operators` writes this page."""


def page() -> str:
    found = classified()
    counts = {how: sum(kind == how for kind, _ in found.values()) for how in CLASSES}
    rows = [f"| {CLASSES[how][0]} | {count} |" for how, count in counts.items() if count]
    parts = [HEAD.format(version=torch.__version__.split("+")[0]), "\n".join(["| | |", "|---|---:|", *rows])]
    for how, (title, text) in CLASSES.items():
        named = {name: why for name, (kind, why) in found.items() if kind == how}
        if named:
            parts += [f"## {title}", text, *_paragraphs(named)]
    return "\n\n".join(parts) + "\n"


def classified() -> dict[str, tuple[str, str]]:
    """By name, without the variants of the database: how it is served and why."""
    ways: dict[str, set[tuple[str, str]]] = {}
    for name, entry in database().items():
        known = ways.setdefault(entry.name if hasattr(entry, "op") else name, set())
        if name in SKIPPED:
            known.add(("skipped", SKIPPED[name]))
            continue
        for case in cases(name):
            if case.way.startswith("sample"):
                how, why = served(case.linearized())
                known.add((how, _reason(why) if how == "autograd" else ""))
    return {name: _together(name, known) for name, known in ways.items()}


def _reason(why: str) -> str:
    """Without what every call without a rule has, and without numbers that differ from sample to sample."""
    if "report" in why:
        return "where it is made of rounding errors"
    reasons = re.findall(r"\(((?:[^()]|\([^()]*\))*)\)", why)
    reasons = [re.sub("of order .*", "of another order", re.sub(r",? shape \(.*", "", r)) for r in reasons]
    return "; ".join(dict.fromkeys(r for r in reasons if r != "it has no rule"))


def _together(name: str, known: set[tuple[str, str]]) -> tuple[str, str]:
    kinds = {how for how, _ in known}
    reasons = sorted({part for _, why in known if why for part in why.split("; ")})
    if "rule" in kinds and "refused" in kinds:
        reasons.append("another order is refused")
    whys = "; ".join(reasons)
    has_rule = "rule" in kinds or (kinds == {"autograd"} and whys and name.split(".")[-1] in RULES)
    if has_rule and kinds != {"rule"}:
        return "partly", whys
    return next(how for how in (*CLASSES,)[::-1] if how in kinds), whys


def _paragraphs(named: dict[str, str]) -> Iterator[str]:
    """One for each part of PyTorch: the names, and after those with the same reason the reason."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, why in sorted(named.items()):
        space, _, short = name.removeprefix("torch.").rpartition(".")
        group = {"": "torch", "nn": "Modules"}.get(space, f"torch.{space}")
        groups.setdefault(group, {}).setdefault(why, []).append(f"`{short}`")
    for group, reasons in sorted(groups.items(), key=lambda pair: (pair[0] != "Modules", pair[0])):
        texts = [", ".join(names) + (f" ({why})" if why else "") for why, names in sorted(reasons.items())]
        text = f"**{group}**: {'; '.join(texts)}."
        yield textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Path(sys.argv[1]).write_text(page(), "utf-8")
