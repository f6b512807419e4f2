"""The content of a card: numbers in words, rows and samples, ready for the page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from markupsafe import escape
from torch import Tensor

from ..evaluate.common import wilson
from . import drawings
from .measuring import Measured
from .numbers import interval, number, percent
from .shown import Part, Shown, overall, shown
from .subject import Kind

CLASSES = 12  # classes that have a row each, at most
SMALL_CLASS = 10  # samples, at least
QUARTERS = ("lowest", "second", "third", "highest")  # quarters by σ
LENGTH = {
    "images": "The length of a change is its 2-norm over all {inputs} values, {units}: "
    "changing every one of them by 0.01 has length {hundredth}.",
    "table": "Changes are counted in {units}: moving one feature by one standard deviation has length 1.",
    "text": "Changes are made to the embedding of each token, the output of <code>{at}</code>. The embedding "
    "of one token has length {size} on average.",
}
UNUSED = "These parameters play no part in the output:"
EVALUATION_ONLY = "This was evaluation mode."  # the doctor's advice for training


@dataclass(frozen=True)
class Tile:
    label: str
    number: str
    detail: str


@dataclass(frozen=True)
class Row:
    """A group of samples. Its bar of σ goes from 5 % to 95 % and marks the median, in percent of width."""

    name: str
    count: int
    accuracy: str
    median: str
    start: float
    end: float
    mark: float


@dataclass(frozen=True, eq=False)
class Content:
    title: str
    about: str  # the data, in one line
    rerun: str
    facts: dict[str, str]  # versions, the weights' digest
    m: Measured

    @property
    def kind(self) -> Kind:
        return self.m.subject.kind

    @property
    def sample(self) -> str:
        return self.m.subject.sample

    @cached_property
    def _median(self) -> float:
        return float(self.m.sensitivity.sigma.median())

    @cached_property
    def _reach(self) -> float:
        return float(self.m.reach[self.m.right].median()) if self.m.right.any() else 0.0

    @property
    def tiles(self) -> list[Tile]:
        m = self.m
        sigma, right = m.sensitivity.sigma, m.right
        low, high = sigma.quantile(torch.tensor([0.05, 0.95], dtype=sigma.dtype)).tolist()
        accuracy = float(right.double().mean())
        level = m.noise.levels[-2]
        return [
            Tile(
                "accuracy",
                percent(accuracy),
                f"{interval(accuracy, len(right))}, {len(right):,} {self.sample}s",
            ),
            Tile("σ, median", number(self._median), f"nine in ten from {number(low)} to {number(high)}"),
            Tile(
                "safe to first order",
                number(self._reach),
                "changes up to this length cannot alter the class (median of the samples that are right)",
            ),
            Tile(
                "under noise",
                percent(m.noise.accuracy[-2]),
                f"with {self.noise_of(level)}; {interval(m.noise.accuracy[-2], m.noise.count)}",
            ),
            Tile(
                "under attack",
                percent(m.attack.left[-1]),
                f"{self.strength}; {interval(m.attack.left[-1], m.attack.count)}, "
                f"{m.attack.count:,} {self.sample}s",
            ),
            self._bound_tile(),
        ]

    def _bound_tile(self) -> Tile:
        b = self.m.bound
        if b.value is None:
            return Tile("upper bound", "none", "the product of the layers' norms is not available; see below")
        detail = f"product of the layers' norms: {self.times} times the largest σ"
        return Tile("upper bound of σ", number(b.value), detail)

    @property
    def times(self) -> str:
        return number(self.m.bound.times or 0.0)

    @property
    def verdict(self) -> str:
        """The numbers in two sentences."""
        margins = self.m.margin[self.m.right]
        lead = number(float(margins.median())) if len(margins) else "0"
        return (
            f"At a typical {self.sample} a small change of length r moves the scores by at most "
            f"{number(self._median)}\u00a0·\u00a0r, and the right score leads by {lead}. "
            f"{percent(float(self.m.right.double().mean()))} are classified correctly. Of "
            f"{self.m.attack.count:,} {self.sample}s {percent(self.m.attack.left[-1])} still are "
            f"{self.attackers}."
        )

    @property
    def attackers(self) -> str:
        if self.kind == "text":
            return "after every tried change of one token"
        return f"after four strong attacks, which change {self.strength}"

    @property
    def strength(self) -> str:
        e = self.m.attack.epsilon
        if self.kind == "images":
            return f"every pixel by up to {255 * e:.3g}/255" + (
                "" if self._pixels else " of its channel's range"
            )
        if self.kind == "table":
            return f"every feature by up to {e:.3g} standard deviations"
        return "one token changed"

    def noise_of(self, level: float) -> str:
        what = {
            "images": "on each pixel" if self._pixels else "of each channel's range",
            "table": self.m.subject.units,
            "text": "times the embedding's size",
        }
        return f"noise of {level:g} {what[self.kind]}"

    @property
    def _pixels(self) -> bool:
        return self.m.subject.units.startswith("pixels")

    @property
    def length(self) -> str:
        """How changes are measured. (This is markup, since it has the name of a layer.)"""
        s = self.m.subject
        inputs = s.x[0].numel()
        size = ""
        if s.at is not None:
            with torch.no_grad():
                module: Any = s.model.get_submodule(s.at)
                size = number(float(module(s.x).norm(dim=-1).mean()))
        units = "in the model's own units" if self.kind == "images" and not self._pixels else s.units
        return LENGTH[self.kind].format(
            inputs=f"{inputs:,}",
            units=units,
            hundredth=number(0.01 * inputs**0.5),
            at=escape(s.at or ""),
            size=size,
        )

    @property
    def quality(self) -> str:
        """How good the numbers are."""
        s = self.m.sensitivity
        relative = s.residual / s.sigma.clamp_min(torch.finfo(s.sigma.dtype).tiny)
        told = f"Every σ is within {float(relative.max()):.0e} (relative) of a singular value of J"
        failed = int((~s.converged).sum())
        return told + (f"; {failed} did not reach the tolerance." if failed else ".")

    @cached_property
    def _scale(self) -> float:
        return float(self.m.sensitivity.sigma.quantile(0.99)) or 1.0

    def _row(self, name: str, of: Tensor) -> Row:
        sigma = self.m.sensitivity.sigma[of]
        low, middle, high = sigma.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=sigma.dtype)).tolist()
        start, mark, end = (min(100.0, 100 * value / self._scale) for value in (low, middle, high))
        accuracy = percent(float(self.m.right[of].double().mean()))
        return Row(name, int(of.sum()), accuracy, number(middle), start, end - start, mark)

    @property
    def rows(self) -> list[Row]:
        """All samples together, then each class, the most sensitive first.

        If there are many, only the first and last classes.
        """
        y = self.m.subject.y.cpu()
        rows = [self._row(name, y == i) for i, name in enumerate(self.m.subject.classes) if (y == i).any()]
        rows.sort(key=lambda row: -row.mark)
        kept = rows if len(rows) <= CLASSES else [*rows[: CLASSES // 2], *rows[-CLASSES // 2 :]]
        return [self._row("all", torch.ones_like(y, dtype=torch.bool)), *kept]

    @property
    def folded(self) -> int:
        """The number of classes without a row."""
        return max(0, len(self.m.subject.y.unique()) - CLASSES)

    @property
    def quarters(self) -> list[tuple[str, ...]]:
        """Quarters of the samples from low to high σ, with their accuracy, margin and reach."""
        m = self.m
        found = []
        for name, of in zip(QUARTERS, m.sensitivity.sigma.argsort().tensor_split(4), strict=True):
            if len(of):
                sigma, part = m.sensitivity.sigma[of], float(m.right[of].double().mean())
                ends = f"{number(float(sigma.min()))}–{number(float(sigma.max()))}"
                middle = [number(float(t[of].median())) for t in (m.margin, m.reach)]
                found.append((name, ends, percent(part), interval(part, len(of)), *middle))
        return found

    @property
    def wrong_and_right(self) -> str:
        sigma, right = self.m.sensitivity.sigma, self.m.right
        if right.all():
            return f"All {self.sample}s are classified correctly."
        if not right.any():
            return f"No {self.sample} is classified correctly."
        wrong, ok = float(sigma[~right].median()), float(sigma[right].median())
        return (
            f"Where the model is wrong ({int((~right).sum()):,} {self.sample}s), the median σ is "
            f"{number(wrong)}; where it is right, {number(ok)}."
        )

    @property
    def most(self) -> list[Shown]:
        return self._shown[: len(self._shown) // 2]

    @property
    def least(self) -> list[Shown]:
        return self._shown[len(self._shown) // 2 :]

    @cached_property
    def _shown(self) -> list[Shown]:
        return shown(self.m)

    @property
    def overall(self) -> list[Part]:
        return overall(self.m)

    @property
    def attacks(self) -> list[tuple[str, str, str, float]]:
        """Per attack: its name, the part that is still right, its interval, and the part in percent."""
        a = self.m.attack
        names = ("no attack", *(("+ " if i else "") + name for i, name in enumerate(a.names)))
        parts = (a.clean, *a.left)
        return [(n, percent(p), interval(p, a.count), 100 * p) for n, p in zip(names, parts, strict=True)]

    @property
    def beware(self) -> list[str]:
        m = self.m
        # J begins at the output of the embedding, so its weights are not used.
        not_here = f"{UNUSED} model.{m.subject.at}.weight."
        found = [w for w in m.diagnosis.warnings if not w.startswith(EVALUATION_ONLY) and w != not_here]
        if m.attack.alarm:
            found.insert(0, m.attack.alarm[0].upper() + m.attack.alarm[1:] + ".")
        if m.diagnosis.reason:
            found.append(f"These calls have no rule and use autograd: {m.diagnosis.reason}.")
        counts = torch.bincount(m.subject.y.cpu(), minlength=len(m.subject.classes))
        if few := [
            name for name, n in zip(m.subject.classes, counts.tolist(), strict=True) if 0 < n < SMALL_CLASS
        ]:
            some = ", ".join(few[:5]) + (" …" if len(few) > 5 else "")
            found.append(f"Fewer than {SMALL_CLASS} samples per class: {some}. Their rows say little.")
        low, high = wilson(m.attack.left[-1], m.attack.count)
        if high - low > 0.1:
            found.append(
                f"{m.attack.count:,} {self.sample}s were attacked, so the part that is left is known only to "
                f"±{50 * (high - low):.0f} points. Attacking more of them takes longer and says more."
            )
        if self.kind == "text":
            found.append(
                "A changed token may change the meaning of a text. Then another answer is no mistake."
            )
        return found

    @property
    def histogram(self) -> str:
        return drawings.histogram(self.m)

    @property
    def relation(self) -> str:
        return drawings.relation(self.m)

    @property
    def noise(self) -> str:
        return drawings.noise(self.m)
