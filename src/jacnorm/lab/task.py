"""What can be trained: classification, and what else there is beside it, each a module of its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from .errors import UsageError
from .run import Run, Share
from .settings import Settings


class Task(Protocol):
    """A module with these functions. Its settings are in `config.KINDS`."""

    def check_names(self, config: Any) -> None:
        """What the settings name exists, as far as that can be told at once."""

    def load(self, config: Any, data_root: Path | str | None, runs: Path) -> Any:
        """The data of a run, from where data sets are or from other runs."""

    def check_start(self, config: Any, data: Any) -> None:
        """A run can begin: told before there is a folder or a process for it."""

    def start(
        self, config: Any, data: Any, device: torch.device | str, share: Share | None = None
    ) -> Run: ...

    def told(self, config: Any, result: dict[str, Any]) -> str:
        """A finished run, in a line."""


MODULES = {
    "classification": "classification",
    "gan": "tasks.gan",
    "policy": "tasks.policy",
    "dqn": "tasks.dqn",
}


def task_of(config: Settings) -> Task:
    """Imported when it is needed: tasks have dependencies of their own."""
    try:
        return cast(Task, import_module(f".{MODULES[config.task]}", __package__))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("jacnorm"):
            raise
        raise UsageError(f"--task {config.task} needs {error.name}: pip install 'jacnorm[rl]'") from error
