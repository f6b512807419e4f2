"""A bar on a terminal, a line an epoch in a log file, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from torch import Tensor
from tqdm import tqdm

from .config import RunConfig

LOG_SECONDS = 30  # a log file hears of an epoch under way no more often than this


class Progress:
    """`listeners` get each epoch's metrics, too (TensorBoard)."""

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
        self._sigma: float | None = None

    @contextmanager
    def training(self, config: RunConfig, epochs_done: int, images: int) -> Iterator[None]:
        self._config, self._images, self._epoch = config, images, epochs_done
        self._said, self._seen = time.perf_counter(), 0
        on_terminal = self._stream.isatty()
        if epochs_done and not self._quiet:
            self._say(f"Going on after epoch {epochs_done} of {config.epochs}.")
        if on_terminal and not self._quiet:
            self._bar = tqdm(
                total=config.epochs * images,
                initial=epochs_done * images,
                unit=" images",
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

    def step_done(self, images: int, sums: Callable[[], Tensor]) -> None:
        self._seen += images
        if self._bar is not None:
            self._bar.update(images)
            if self._bar.last_print_n == self._bar.n:  # it has just been drawn: time for new numbers
                loss, _, accuracy = (sums() / self._seen_of_epoch()).tolist()
                self._describe(loss, accuracy)
        elif not self._quiet and time.perf_counter() - self._said > LOG_SECONDS:
            part = self._seen_of_epoch() / self._images
            self._say(f"epoch {self._epoch + 1:>3}/{self._config.epochs}  {part:.0%} of its images")

    def _seen_of_epoch(self) -> int:
        return (self._seen - 1) % self._images + 1

    def _describe(self, loss: float, accuracy: float) -> None:
        assert self._bar is not None
        self._bar.set_description(f"epoch {self._epoch + 1}/{self._config.epochs}", refresh=False)
        sigma = "" if self._sigma is None else f" σ {self._sigma:.2f}"
        self._bar.set_postfix_str(f"loss {loss:.3f} accuracy {accuracy:.1%}{sigma}", refresh=False)

    def epoch_done(self, metrics: dict[str, Any]) -> None:
        self._epoch = metrics["epoch"]
        self._sigma = metrics["validation_sigma"]
        for listener in self._listeners:
            listener(metrics)
        if not self._quiet and self._bar is None:
            self._say(self._line(metrics))

    def _line(self, m: dict[str, Any]) -> str:
        left = (self._config.epochs - m["epoch"]) * m["seconds"]
        return (
            f"epoch {m['epoch']:>3}/{self._config.epochs}  loss {m['train_loss']:.4f}  "
            f"validation: loss {m['validation_loss']:.4f} accuracy {m['validation_accuracy']:.2%} "
            f"σ {m['validation_sigma']:.3f}  {m['images_per_second']:,.0f} images/s  {duration(left)} left"
        )

    def _say(self, line: str) -> None:
        self._said = time.perf_counter()
        print(line, file=self._stream, flush=True)


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
