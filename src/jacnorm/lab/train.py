"""Training of any task, from settings to a folder with weights, metrics and a result.

Classification is one task. Each other task is a module of its own.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from .errors import UsageError
from .progress import Progress
from .run import DivergedError, Run, Share, environment
from .run_files import RunFiles, marked
from .settings import Settings


class Task(Protocol):
    """A module with these functions. Its settings are in `config.KINDS`."""

    def check_names(self, config: Any) -> None:
        """Check quickly that data sets, nets and environments exist."""

    def load(self, config: Any, data_root: Path | str | None, runs: Path) -> Any:
        """The data of a run, from the data sets or from other runs."""

    def check_start(self, config: Any, data: Any) -> None:
        """Check that a run can start, before a folder or a process is made."""

    def start(
        self, config: Any, data: Any, device: torch.device | str, share: Share | None = None
    ) -> Run: ...

    def told(self, config: Any, result: dict[str, Any]) -> str:
        """A line about a finished run."""


MODULES = {
    "classification": "classification",
    "gan": "tasks.gan",
    "policy": "tasks.policy",
    "dqn": "tasks.dqn",
}


def task_of(config: Settings) -> Task:
    """The module of a task. It is imported when needed, since tasks have their own dependencies."""
    try:
        return cast(Task, import_module(f".{MODULES[config.task]}", __package__))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("jacnorm"):
            raise
        raise UsageError(f"--task {config.task} needs {error.name}: pip install 'jacnorm[rl]'") from error


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
