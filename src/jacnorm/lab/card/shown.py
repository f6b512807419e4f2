"""The most and the least sensitive samples, with their directions: pictures, features or tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..wording import signed
from .drawings import direction, image
from .measuring import Measured
from .numbers import number, percent
from .subject import Subject

FEATURES = 5  # of a sample
OVERALL = 10  # of a table


@dataclass(frozen=True)
class Part:
    """A feature or a token of a sample: its part of the direction, and its value."""

    name: str
    weight: float  # for a feature its entry of v, for a token its part of ‖v‖²
    value: str = ""


@dataclass(frozen=True)
class Shown:
    index: int
    sigma: str
    label: str
    predicted: str
    gains: str
    loses: str
    image: str = ""
    direction: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def wrong(self) -> bool:
        return self.label != self.predicted


def shown(m: Measured) -> list[Shown]:
    """The most sensitive samples, then as many of the least sensitive."""
    return [_one(m, n, int(i)) for n, i in enumerate(m.shown)]


def overall(m: Measured) -> list[Part]:
    """For a table, the features that contribute most to σ², on average."""
    if m.overall is None:
        return []
    top = m.overall.argsort(descending=True)[:OVERALL].tolist()
    parts = m.overall.tolist()
    return [Part(m.subject.names[j], parts[j], percent(parts[j])) for j in top]


def _one(m: Measured, n: int, i: int) -> Shown:
    s = m.subject
    u, v, x = m.vectors.U[n, 0], m.vectors.V[n, 0], s.x[i].cpu()
    label, predicted = (s.classes[int(of[i])] for of in (s.y, m.sensitivity.predicted))
    said = number(float(m.sensitivity.sigma[i])), label, predicted
    ends = s.classes[int(u.argmax())], s.classes[int(u.argmin())]
    if s.kind == "images":
        return Shown(i, *said, *ends, image(x), direction(v))
    return Shown(i, *said, *ends, parts=_features(s, v, x) if s.kind == "table" else _tokens(s, v, x))


def _features(s: Subject, v: Tensor, z: Tensor) -> tuple[Part, ...]:
    top = v.abs().argsort(descending=True)[:FEATURES].tolist()
    return tuple(Part(s.names[j], float(v[j]), signed(float(z[j]), 1)) for j in top)


def _tokens(s: Subject, v: Tensor, tokens: Tensor) -> tuple[Part, ...]:
    module: Any = s.model.get_submodule(s.at or "")
    pairs = zip(tokens.tolist(), v.square().sum(-1).tolist(), strict=True)
    return tuple(Part(s.names[token], weight) for token, weight in pairs if token != module.padding_idx)
