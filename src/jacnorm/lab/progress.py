"""A bar on a terminal, a line per epoch in a log file, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor
from tqdm import tqdm

if TYPE_CHECKING:
    from .run import Run

LOG_SECONDS = 30  # seconds, at least, between two lines about an unfinished epoch in a log file


def progress(total: int, what: str, unit: str = " images") -> Any:
    """A bar for work of seconds or minutes, on a terminal. It appears after a second."""
    return tqdm(total=total, desc=what, unit=unit, disable=None, leave=False, delay=1, dynamic_ncols=True)


class Progress:
    """`listeners`, such as TensorBoard, also get the metrics of each epoch."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        only_bar: bool = False,  # nothing in a log file
        stream: TextIO | None = None,
        listeners: tuple[Callable[[dict[str, Any]], None], ...] = (),
    ):
        self._stream = stream or sys.stderr
        self._quiet, self._listeners = quiet or (only_bar and not self._stream.isatty()), listeners
        self._only_bar = only_bar
        self._bar: tqdm[Any] | None = None

    @contextmanager
    def training(self, run: Run) -> Iterator[None]:
        config, epochs_done = run.settings, len(run.history)
        self._run, self._epoch = run, epochs_done
        self._said, self._seen = time.perf_counter(), 0
        on_terminal = self._stream.isatty()
        if epochs_done and not self._quiet:
            self._say(f"Going on after epoch {epochs_done} of {config.epochs}.")
        if on_terminal and not self._quiet:
            self._bar = tqdm(
                total=config.epochs * run.work,
                initial=epochs_done * run.work,
                unit=f" {run.unit}",
                unit_scale=True,
                file=self._stream,
                dynamic_ncols=True,
                desc=config.method,
                leave=not self._only_bar,
                mininterval=0.2,
                smoothing=0.1,
            )
        try:
            yield
        finally:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    def step_done(self, amount: int, words: Callable[[], str] = str) -> None:
        """Count some work. `words` describes the state; it is called only when the bar is drawn."""
        self._seen += amount
        if self._bar is not None:
            self._bar.update(amount)
            if self._bar.last_print_n == self._bar.n:  # the bar has just been drawn
                self._describe(words())
        elif not self._quiet and time.perf_counter() - self._said > LOG_SECONDS:
            part = ((self._seen - 1) % self._run.work + 1) / self._run.work
            self._say(f"{self._where(self._epoch + 1)}  {part:.0%} of its {self._run.unit}")

    def _where(self, epoch: int) -> str:
        return f"epoch {epoch:>3}/{self._run.settings.epochs}"

    def _describe(self, words: str) -> None:
        assert self._bar is not None
        self._bar.set_description(f"epoch {self._epoch + 1}/{self._run.settings.epochs}", refresh=False)
        self._bar.set_postfix_str(words, refresh=False)

    def epoch_done(self, metrics: dict[str, Any]) -> None:
        self._epoch = metrics["epoch"]
        for listener in self._listeners:
            listener(metrics)
        if not self._quiet and self._bar is None:
            left = (self._run.settings.epochs - self._epoch) * metrics["seconds"]
            line = self._run.line(metrics)
            self._say(f"{self._where(self._epoch)}  {line}  {duration(left)} left")

    def _say(self, line: str) -> None:
        self._said = time.perf_counter()
        print(line, file=self._stream, flush=True)


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Tally:
    """Sums over the steps of an epoch. They are computed only when they are read."""

    def __init__(self) -> None:
        self._images: list[float] = []
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []
        self._sums: Tensor | None = None
        self._seen = 0.0

    def add(self, images: float, loss: Tensor, penalty: Tensor, accuracy: Tensor) -> None:
        self._seen += images
        self._images.append(images)
        self._steps.append((loss, penalty, accuracy))

    def sums(self) -> Tensor:
        """The sums of loss, penalty and accuracy, each multiplied by the number of images."""
        if self._steps:
            means = torch.stack([torch.stack(column) for column in zip(*self._steps, strict=True)])
            found = (means * torch.tensor(self._images, device=means.device)).sum(1)
            self._sums = found if self._sums is None else self._sums + found
            self._images.clear()
            self._steps.clear()
        assert self._sums is not None
        return self._sums

    def words(self, history: Sequence[Mapping[str, Any]]) -> str:
        loss, _, accuracy = (self.sums() / self._seen).tolist()
        sigma = f" σ {history[-1]['validation_sigma']:.2f}" if history else ""
        return f"loss {loss:.3f} accuracy {accuracy:.1%}{sigma}"
