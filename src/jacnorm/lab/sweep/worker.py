"""Trains one run in a process of its own: `python -m jacnorm.lab.sweep.worker`, told what to do on stdin.

The process ends when its parent does, since nobody would wait for it any more; its checkpoint stays.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import torch

from ...errors import JacnormError
from ..cli import keep_memory
from ..config import make_config
from ..progress import Progress
from ..run import DivergedError
from ..settings import Settings
from ..train import task_of, train
from .pool import LOCKED_ELSEWHERE
from .store import Store


def carry_out(task: dict[str, Any]) -> int:
    """Train, or go on training, one run, and publish its result."""
    torch.set_num_threads(task["threads"])
    config = make_config(task["config"])
    store = Store(Path(task["results"]), Path(task["runs"]))
    with store.lock(config) as mine:
        if not mine:
            return LOCKED_ELSEWHERE
        if store.is_done(config):
            return 0
        data = task_of(config).load(config, task["data_root"], store.runs)
        store.tidy(config)
        store.publish(config, _result(config, data, store.run_folder(config), task["device"]))
    return 0


def _result(config: Settings, data: Any, folder: Path, device: str) -> dict[str, Any]:
    """A run that diverges has one too: it would do so again, and its settings have been looked at."""
    try:
        return train(config, data, folder, device=device, resume=True, progress=Progress(stream=sys.stderr))
    except DivergedError as error:
        print(f"diverged: {error}", file=sys.stderr)
        return error.result


def attempt(task: dict[str, Any]) -> int:
    """`carry_out`, with what went wrong on stderr, which is the run's log."""
    keep_memory()
    try:
        return carry_out(task)
    except JacnormError as error:
        print(f"error: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return 1


def main() -> int:
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return attempt(task)


def _end_with_parent() -> None:
    sys.stdin.read()  # returns when the parent closes its side, by dying if need be
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
