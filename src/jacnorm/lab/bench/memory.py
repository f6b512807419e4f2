"""Peak memory of an optimizer step, each in a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ...pytorch.half import half_pays
from ..evaluate.common import progress
from .nets import batch, make
from .timing import stepper
from .ways import WAYS

STATUS = Path("/proc/self/status")
ROUNDS = 3  # in each of which every way has a process
SECONDS = 40.0  # after so long no further round begins


def growth(net: str, size: int, names: list[str], width: float) -> dict[str, float]:
    """MB that two steps on a batch of this size add to the process; "plain" is the step without penalty.

    J and the loss of the first step live on into the second, and the first verifies the model. The median of
    some processes: where tensors come to lie in memory is partly luck.
    """
    if not STATUS.exists():  # not on Linux
        return {}
    found: dict[str, list[float]] = {name: [] for name in ("plain", *names)}
    begin = time.perf_counter()
    with _helper() as helper, progress(ROUNDS * len(found), "memory", " processes") as bar:
        for round_ in range(ROUNDS):
            if round_ and time.perf_counter() - begin > SECONDS:
                break
            for name, peaks in found.items():
                helper.send((net, size, name, width))
                peaks.append(helper.recv())
                bar.update()
    return {name: median(peaks) for name, peaks in found.items()}


@contextmanager
def _helper() -> Iterator[Connection]:
    """A process that has loaded PyTorch and never run it: it alone can fork one that measures in no time."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C is for this process alone
    try:
        helper = context.Process(target=_serve, args=(theirs,))
        helper.start()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()  # so that a helper that dies is an end of file, not a wait for ever
    try:
        yield ours
    finally:
        ours.close()
        helper.terminate()
        helper.join()


def _serve(requests: Connection) -> None:
    torch.set_num_threads(1)
    idle = torch.optim.SGD([torch.zeros(1)], lr=1.0)  # loads what every optimizer's first step loads
    idle.zero_grad()
    idle.step()
    half_pays(torch.bfloat16, torch.device("cpu"))  # tried here; all that are forked know the answer
    context = get_context("fork")
    with suppress(EOFError, BrokenPipeError):  # the other end is gone
        while True:
            task = requests.recv()
            ours, theirs = context.Pipe()
            child = context.Process(target=_answer, args=(theirs, task), daemon=True)
            child.start()
            theirs.close()
            requests.send(ours.recv())
            child.join()


def _answer(answers: Connection, task: tuple[str, int, str, float]) -> None:
    answers.send(_growth(*task))


def _growth(net: str, size: int, name: str, width: float) -> float:
    way: Any = next((w.make for w in WAYS if w.name == name), None)
    model = make(net, width=width)
    stepper(model, way, batch(net, 2))()  # loads libraries
    step = stepper(model, way, batch(net, size))
    _forget_peak()
    before = _peak()
    for _ in range(2):
        step()
    return _peak() - before


def _peak() -> float:
    """MB that this process has held at most since it was last forgotten."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
