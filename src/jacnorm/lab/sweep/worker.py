"""Trains one run in a process of its own: `python -m jacnorm.lab.sweep.worker`, told what to do on stdin.

The process ends when its parent does, since nobody would wait for it any more; its checkpoint stays.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ...errors import JacnormError
from ..allocator import keep_memory
from ..config import RunConfig, make_config
from ..data import load
from ..progress import Progress
from ..train import train
from .store import Store

LOCKED_ELSEWHERE = 3


def order(config: RunConfig, store: Store, data_root: Path | None, device: str, threads: int) -> str:
    """What the parent writes to the worker's stdin, one line."""
    return json.dumps(
        {
            "config": asdict(config),
            "results": str(store.results),
            "runs": str(store.runs),
            "data_root": None if data_root is None else str(data_root),
            "device": device,
            "threads": threads,
        }
    )


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
        data = load(config.data, task["data_root"])
        folder = store.run_folder(config)
        for half_written in folder.glob(".*"):  # by one that was killed; nobody else writes here now
            half_written.unlink()
        result = train(
            config, data, folder, device=task["device"], resume=True, progress=Progress(stream=sys.stderr)
        )
        store.publish(config, result)
    return 0


def main() -> int:
    keep_memory()
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return carry_out(task)
    except JacnormError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _end_with_parent() -> None:
    sys.stdin.read()  # returns when the parent closes its side, by dying if need be
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
