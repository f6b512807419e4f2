"""Training of any task, from settings to a folder with weights, metrics and a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .progress import Progress
from .run import DivergedError, Run, Share, environment, task_of
from .run_files import RunFiles, marked
from .settings import Settings


def train(
    config: Settings,
    data: Any,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    resume: bool = False,
    progress: Progress | None = None,
    share: Share | None = None,
) -> dict[str, Any]:
    """Train to the end, with a checkpoint after every epoch.

    Returns the result, which is in result.json as well.
    """
    progress, share = progress or Progress(quiet=True), share or Share()
    files = RunFiles(folder)
    with torch.random.fork_rng():
        run = task_of(config).start(config, data, device, share)
        with share.first_goes_ahead():
            files.prepare(run, resume) if share.first else files.load(run)
        try:
            with progress.training(run):
                train_epochs(run, files, progress)
            test = run.test()
        except DivergedError as error:
            error.result = {**result_of(run, None, device), "diverged": str(error)}
            if share.first:
                files.write_result(error.result)
            raise
        result = result_of(run, test, device)
        if share.first:
            files.finish(run, result)
    return result


def train_epochs(run: Run, files: RunFiles, progress: Progress) -> None:
    for epoch in range(len(run.history), run.settings.epochs):
        metrics = run.epoch(epoch, progress)
        run.history.append(metrics)
        if run.share.first:
            files.save_epoch(run)
        progress.epoch_done(metrics)


def result_of(run: Run, test: dict[str, float] | None, device: torch.device | str) -> dict[str, Any]:
    return {
        "id": run.settings.id,
        "config": run.settings.stored(),
        "test": test,
        "history": run.history,
        **marked(run),
        "environment": environment(device),
    }
