"""Where the iteration should start. Each way has a cost in products and a cosine with the exact gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ... import Linearization, SpectralPenalty, linearize
from ...estimators.operator import column, flat, normalized
from ...penalties.spectral import alignment, is_rough
from ..progress import progress
from .zoo import Pupil

BATCH = 32
STEPS = 150  # of training
WATCHED = 75  # the last of these steps; ways with a memory watch them
TRIED = 2  # batches that no way has seen; numbers are means over them


class FromLossGradient(SpectralPenalty):
    """u is the gradient of the loss with respect to the scores, with the predicted class as the label.
    If the output is an image or a single number, u is the output."""

    def _first(self, J: Linearization) -> Tensor:
        z = J.output.detach()
        if z.dim() > 3 or z.shape[-1] == 1:
            return normalized(z)
        guess = F.one_hot(z.argmax(-1), z.shape[-1])
        return normalized(z.softmax(-1) - guess)


class FromMean(SpectralPenalty):
    """u is the mean vector of earlier batches. Signs are flipped so that all vectors agree."""

    mean: Tensor | None = None

    def _first(self, J: Linearization) -> Tensor:
        return super()._first(J) if self.mean is None else self.mean.expand(J.output_shape)

    def forward(self, J: Linearization, index: Tensor | None = None) -> Tensor:
        value, u, _ = self._found(J, None)
        mean = u[:1] if self.mean is None else self.mean
        turned = u * column((flat(u) * flat(mean)).sum(1).sign(), u)
        self.mean = normalized(0.9 * mean + turned.mean(0, keepdim=True))
        return value


class Refined(SpectralPenalty):
    """J v replaces u in the gradient. This takes one more product."""

    def _begin(self, J: Linearization, rows: Tensor | None) -> tuple[Tensor, bool]:
        return super()._begin(J, rows)[0], True


class Trusting(SpectralPenalty):
    """u stays in the gradient, although it comes from other samples. This saves one product."""

    def _begin(self, J: Linearization, rows: Tensor | None) -> tuple[Tensor, bool]:
        return super()._begin(J, rows)[0], False


@dataclass(frozen=True)
class Trial:
    name: str
    make: Callable[[], SpectralPenalty]
    has_index: bool = False
    rounds: int | str = 1


def _trial(name: str, kind: type[SpectralPenalty], rounds: int | str, **options: Any) -> Trial:
    indexed = options.pop("index", False)
    return Trial(name, lambda: kind(1.0, rounds, **options), indexed, rounds)  # type: ignore[arg-type]


STARTS: tuple[tuple[str, type[SpectralPenalty], dict[str, Any]], ...] = (
    ("recent samples", SpectralPenalty, {}),
    ("recent samples, not refined", Trusting, {}),
    ("scores", SpectralPenalty, {"start": "output"}),
    ("the loss's gradient", FromLossGradient, {"start": "output"}),
    ("the mean vector", FromMean, {"start": "output"}),
    ("J on a random v", SpectralPenalty, {"start": "random"}),
    ("J on a random v, refined", Refined, {"start": "random"}),
    ("index=", SpectralPenalty, {"index": True}),
)
MOST = {"recent samples": (1, 2, 3, "auto"), "scores": (1, 2, 3)}  # rounds; the others take 1 and 2
TRIALS = tuple(
    _trial(name, kind, rounds, **options)
    for name, kind, options in STARTS
    for rounds in MOST.get(name, (1,) if "refined" in name else (1, 2))
)


def starts(pupil: Pupil, steps: int = STEPS) -> dict[str, Any]:
    """Products, cosine and error of σ of each way, for one net before and after training."""
    with torch.random.fork_rng(), progress(steps, pupil.name, " steps") as bar:
        torch.manual_seed(0)
        lesson = Lesson(pupil)
        before = lesson.tried()
        for left in reversed(range(steps)):
            lesson.step(is_watched=left < WATCHED)
            bar.update()
        return {"untrained": before, "trained": lesson.tried()}


class Lesson:
    """The training of one net, which every way watches."""

    def __init__(self, pupil: Pupil):
        self.pupil, self.net = pupil, pupil.make()
        self.x, self.targets = pupil.data()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        self.count = min(len(self.x) - TRIED * BATCH, 30 * BATCH)  # few, so that each is seen several times
        self.order = torch.empty(0, dtype=torch.long)
        self.penalties = {(way.name, way.rounds): way.make() for way in TRIALS}

    def step(self, *, is_watched: bool) -> None:
        if len(self.order) < BATCH:
            self.order = torch.randperm(self.count)
        rows, self.order = self.order[:BATCH], self.order[BATCH:]
        J = self.linearized(rows)
        if is_watched:
            with warnings.catch_warnings(action="ignore"):  # that a start is rough is what is measured here
                for way in TRIALS:
                    if way.rounds == 1 or way.has_index or "recent" in way.name or "mean" in way.name:
                        self.penalties[way.name, way.rounds](J, index=rows if way.has_index else None)
        loss = self.pupil.loss(J.output, self.targets[rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def linearized(self, rows: Tensor) -> Linearization:
        return linearize(self.net, self.x[rows], at=self.pupil.at)

    def tried(self) -> list[dict[str, Any]]:
        """All ways, tried on new samples; with index= on samples that were seen in training."""
        return [self._tried(way) for way in TRIALS]

    def _tried(self, way: Trial) -> dict[str, Any]:
        penalty = self.penalties[way.name, way.rounds]
        reports, aligned, low = [], 0.0, 0.0
        for i in range(TRIED):
            new = torch.arange(BATCH) + self.count + i * BATCH
            rows = torch.arange(BATCH) + i * BATCH if way.has_index else new
            index = rows if way.has_index else None
            J = self.linearized(rows)
            reports.append(penalty.report(J, index, samples=BATCH))
            with torch.no_grad():
                found = alignment(J, *penalty._found(J, None)[1:])
                aligned, low = aligned + found[0] / TRIED, low + found[1] / TRIED
        return {
            "start": way.name,
            "rounds": way.rounds,
            "products": sum(r.products for r in reports) / TRIED,
            "cosine": sum(r.cosine for r in reports) / TRIED,
            "error": -sum(r.error for r in reports) / TRIED,
            "warns": not way.has_index and is_rough(aligned, low),
        }
