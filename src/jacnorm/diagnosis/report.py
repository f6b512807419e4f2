"""The findings of `doctor`, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Literal

import torch

from ..errors import InputError
from ..plots import plot_calls
from .cost import Cost
from .examiner import Call
from .folding import folded

WIDTH = 100
CALL_WIDTH = 20
BY_AUTOGRAD = "by autograd"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """The result of `doctor`. Print it, or read its fields.

    `calls` are the calls in the order in which they ran. `reason` names the calls that are computed by
    autograd, and why. `problem` says why the model cannot be linearized, or is None. `cost` is None if there
    is nothing to train.
    """

    name: str
    training: bool | None
    input_shape: torch.Size
    output_shape: torch.Size | None = None
    at: str | None = None  # the layer at which J begins
    chosen: str | int | None = None  # the name of the output, if it was chosen by default
    engine: str | None = None
    reason: str | None = None
    problem: str | None = None
    calls: Sequence[Call] = ()
    warnings: Sequence[str] = ()
    cost: Cost | None = None

    @property
    def served(self) -> bool:
        return self.problem is None

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__  # so that notebooks show it

    def text(self, width: int = WIDTH) -> str:
        """The verdict, then the table of calls."""
        return "\n\n".join(filter(None, [self.verdict(width), self.table(width)]))

    def plot(self) -> Any:
        """A matplotlib figure of the time of each call in the forward pass, colored by the kind of rule."""
        lines = [line for line in folded(self.calls) if not line.head]
        if not lines:
            raise InputError("There are no calls to show: the model failed before its first call.")
        total = sum(line.seconds for line in lines)
        named = [f"{line.layer.strip()} {line.call.name}".strip() for line in lines]
        rules = [line.call.rule or BY_AUTOGRAD for line in lines]
        parts = [line.seconds / total for line in lines]
        return plot_calls(list(zip(named, rules, parts, strict=True)))

    def table(self, width: int = WIDTH) -> str:
        """One line per call. Repeated blocks are shown once."""
        return _table(self._rows(), width) if self.calls else ""

    def verdict(self, width: int = WIDTH) -> str:
        """The model, its cost, memory and engine, and warnings."""
        mode = {True: ", training mode", False: ", evaluation mode", None: ""}[self.training]
        to = f" → {_sizes(self.output_shape)}" if self.output_shape is not None else ""
        to += f" ({self.chosen!r})" if self.chosen is not None else ""
        at = f", from the output of {self.at!r}" if self.at is not None else ""
        parts = [f"{self.name}{mode}: {_sizes(self.input_shape)}{to}{at}"]
        if self.problem is not None:
            return "\n\n".join([*parts, _paragraph("Problem", [self.problem], width)])
        if self.cost is not None:
            parts.append(_paragraph("Cost", [self._cost(self.cost)], width))
            parts.append(_paragraph("Half", [self._half(self.cost)], width))
            parts.append(_paragraph("Memory", [self._memory(self.cost)], width))
        parts.append(_paragraph("Engine", self._engine(), width))
        if self.warnings:
            parts.append(_paragraph("Beware", [f"- {warning}" for warning in self.warnings], width))
        return "\n\n".join(parts)

    def _rows(self) -> list[list[str]]:
        total = sum(call.seconds for call in self.calls)
        rows = [["layer", "call", "output", "rule", "time" if self.served else ""]]
        for line in folded(self.calls):
            call, time = line.call, _percent(line.seconds / total) if self.served else ""
            if line.head:
                rows.append([line.layer, f"{line.blocks} × {line.calls} calls", "", "", time])
                continue
            batched = call.shape[:1] == self.input_shape[:1]
            shape = _sizes(call.shape[1:] if batched else call.shape)
            name = _shortened(call.name, CALL_WIDTH, keep="start")
            rows.append([line.layer, name, shape, call.rule or BY_AUTOGRAD, time])
        return rows

    def _engine(self) -> list[str]:
        if self.engine == "autograd":
            return [f"autograd, the whole model as one step, because {self.reason}."]
        by_autograd: dict[tuple[str, str], list[Call]] = {}
        for call in self.calls:
            if call.reason:
                by_autograd.setdefault((call.name, call.reason), []).append(call)
        if not by_autograd:
            return ["layerwise: every call has a rule, and the products are equal to those of autograd."]
        lines = ["layerwise. These calls have no rule, and autograd differentiates them twice:"]
        for (name, reason), calls in by_autograd.items():
            count = f"{len(calls)} calls, the first: " if len(calls) > 1 else ""
            lines.append(f"- {name}: {reason} ({count}{calls[0].where})")
        return lines

    def _cost(self, cost: Cost) -> str:
        return (
            f"a training step with SpectralPenalty takes {cost.ratio:.1f} times a plain one "
            f"({_duration(cost.plain)} → {_duration(cost.penalty)}, {_samples(self.input_shape[0])}), and "
            f"{cost.ratio_with_index:.1f} times with penalty(J, index=idx)."
        )

    def _half(self, cost: Cost) -> str:
        if isinstance(cost.half, str):
            return f"precision=torch.bfloat16 {cost.half}."
        cosine = cost.half.cosine
        gradient = (
            "" if cosine is None else f" Its gradient has a cosine of {cosine:.5f} with the float32 one."
        )
        return (
            f"with precision=torch.bfloat16 and index=idx a step takes {cost.ratio_in_half:.1f} times a "
            f"plain one, in place of {cost.ratio_with_index:.1f}.{gradient}"
        )

    def _memory(self, cost: Cost) -> str:
        if cost.memory is None:
            return "not known: the model hides its calls, so their tensors cannot be counted."
        plain, penalty = cost.memory
        return (
            f"at its peak this step holds {_size(penalty)}, {penalty / plain:.1f} times a plain one "
            f"({_size(plain)}), weights not counted."
        )


def _table(rows: list[list[str]], width: int) -> str:
    """A table with columns as wide as their content. If there is too little room, the first is shortened."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    widths[0] = max(12, min(widths[0], width - sum(widths[1:]) - 2 * (len(widths) - 1)))
    lines = []
    for first, *middle, last in rows:
        cells = [_shortened(first, widths[0], keep="end").ljust(widths[0])]
        cells += [cell.ljust(w) for cell, w in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([*cells, last.rjust(widths[-1])]).rstrip())
    return "\n".join(lines)


def _paragraph(head: str, items: Sequence[str], width: int) -> str:
    """A paragraph with the head in the margin. Each item starts a new line."""
    margin = 9
    lines: list[str] = []
    for item in items:
        lines += wrap(item, width - margin, subsequent_indent="  " if item.startswith("- ") else "")
    return "\n".join((head if i == 0 else "").ljust(margin) + line for i, line in enumerate(lines))


def _shortened(text: str, width: int, keep: Literal["start", "end"]) -> str:
    if len(text) <= width:
        return text
    return text[: width - 1] + "…" if keep == "start" else "…" + text[len(text) - width + 1 :]


def _sizes(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def _percent(part: float) -> str:
    return f"{part:.0%}" if part >= 0.005 else ""


def _samples(count: int) -> str:
    return "one sample" if count == 1 else f"{count} samples"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
