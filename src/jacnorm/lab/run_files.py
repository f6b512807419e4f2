"""The folder of a run, on disk."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from . import checkpoint
from .classification import start
from .config import RunConfig, make_config
from .data import DataSet
from .data.catalog import SETS
from .errors import UsageError
from .nets import Normalized
from .results import read_result
from .run import Run
from .settings import Settings

CHANGED_NET = "its code has changed since; give the new net another name, or the old one its code back"


AnySettings = TypeVar("AnySettings", bound=Settings)

STARTED_IN = "started_in"  # in config.json, beside the settings: where relative paths began


class RunFiles:
    """The checkpoint is the truth; metrics.jsonl and result.json are made from it."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.checkpoint = folder / "checkpoint.safetensors"
        self.result = folder / "result.json"

    def prepare(self, run: Run, resume: bool) -> None:
        if (self.folder / "config.json").exists():
            if not resume:
                raise UsageError(
                    f"{self.folder} already has a run: add --resume to go on with it, or name another folder"
                )
            self._check_settings(run.settings)
        self.load(run)
        began = {STARTED_IN: _started_in(self.folder) or str(Path.cwd())}
        checkpoint.write_json(self.folder / "config.json", run.settings.stored() | began)
        self._write_metrics(run)

    def save_epoch(self, run: Run) -> None:
        rest = {"config": run.settings.stored(), "history": run.history, **marked(run)}
        checkpoint.save(self.checkpoint, run.tensors(), rest)
        self._write_metrics(run)

    def finish(self, run: Run, result: dict[str, Any]) -> None:
        weights = self.folder / "weights.safetensors"
        rest = {"config": run.settings.stored(), **marked(run), **run.beside_weights}
        checkpoint.save(weights, run.weights(), rest)
        run.keep_pictures(self.folder)
        self.write_result(result)

    def write_result(self, result: dict[str, Any]) -> None:
        checkpoint.write_json(self.result, result)

    def _check_settings(self, config: Settings) -> None:
        """Raise an error if a setting that the method uses has changed."""
        before, now = read_settings(self.folder).relevant(), config.relevant()
        if changed := [f"{k} was {before[k]!r}" for k in now if k in before and before[k] != now[k]]:
            raise UsageError(f"{self.folder} is a run with other settings: {', '.join(changed)}")

    def load(self, run: Run) -> None:
        """Continue from the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return
        tensors, rest = checkpoint.load(self.checkpoint)
        _fill(run, run.load, tensors, rest, self.folder)
        run.history[:] = rest["history"]

    def _write_metrics(self, run: Run) -> None:
        lines = "".join(json.dumps(metrics) + "\n" for metrics in run.history)
        checkpoint.write_atomically(self.folder / "metrics.jsonl", lines.encode())


def read_settings(folder: Path | str) -> Settings:
    """The settings of the run in a folder."""
    content = _content(folder)
    return make_config({name: value for name, value in content.items() if name != STARTED_IN})


def _content(folder: Path | str) -> dict[str, Any]:
    try:
        return dict(json.loads(Path(folder, "config.json").read_text()))
    except FileNotFoundError:
        raise UsageError(f"{folder} is not the folder of a run: it has no config.json") from None
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{folder} is not the folder of a run ({error})") from error


def located(config: AnySettings, folder: Path | None) -> AnySettings:
    """The settings with the place of the run's own data today.

    A relative path began in the folder where the training was started. If the data is not there now, it is
    looked for in the current folder, and in the folders above the run: a project may have moved as a whole.
    """
    if folder is None or not isinstance(config, RunConfig) or config.data in SETS or ":" in config.data:
        return config
    typed = Path(config.data).expanduser()
    began = _started_in(folder)
    places = [*([Path(began)] if began else []), Path(), *folder.absolute().parents]
    found = next((place / typed for place in places if (place / typed).exists()), typed)
    return config if found.absolute() == typed.absolute() else replace(config, data=str(found))


def _started_in(folder: Path) -> str | None:
    """Where the training of a run was started. Folders of earlier versions do not have it."""
    return _content(folder).get(STARTED_IN) if (folder / "config.json").exists() else None


def read_config(folder: Path | str) -> RunConfig:
    """The settings of the classifier in a folder."""
    config = read_settings(folder)
    if not isinstance(config, RunConfig):
        raise UsageError(f"{folder} is a run of --task {config.task}; a classifier is needed here")
    return config


def check_finished(folder: Path) -> None:
    if (folder / "weights.safetensors").exists():
        return
    read_config(folder)  # raises an error if it is not a run
    if what := divergence(folder):
        raise UsageError(f"{folder} has no network, it diverged. {what}")
    raise UsageError(f"{folder} is not finished: go on with jacnorm train --out {folder} --resume")


def divergence(folder: Path) -> str | None:
    """The message of a run that diverged, else None."""
    file = folder / "result.json"
    return read_result(file).get("diverged") if file.exists() else None


def load_run(folder: Path | str, config: RunConfig, data: DataSet) -> Normalized:
    """The trained network of a finished run."""
    folder = Path(folder)
    check_finished(folder)
    tensors, rest = checkpoint.load(folder / "weights.safetensors")
    with torch.random.fork_rng():
        run = start(config, data, "cpu")
    _fill(run, lambda found: run.load_weights(found, rest), tensors, rest, folder)
    return run.model.eval()


def _fill(
    run: Run,
    load: Callable[[dict[str, Tensor]], Any],
    tensors: dict[str, Tensor],
    rest: Mapping[str, Any],
    folder: Path,
) -> None:
    """Load stored weights. Raises an error if they are of another net."""
    another = UsageError(f"{folder} was trained with another {run.settings.architecture[0]}: {CHANGED_NET}")
    if rest.get("fingerprint", run.fingerprint) != run.fingerprint:  # older files have no fingerprint
        raise another
    try:
        load(tensors)
    except RuntimeError as error:
        raise another from error


def marked(run: Run) -> dict[str, str]:
    """The fingerprint of a user's own net, for files; empty for our nets."""
    return {} if run.fingerprint is None else {"fingerprint": run.fingerprint}


def marked_with(folder: Path) -> str | None:
    """The fingerprint in a run's checkpoint, if it has one."""
    file = folder / "checkpoint.safetensors"
    return checkpoint.load_rest(file).get("fingerprint") if file.exists() else None


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock a run. Yields whether we got the lock. The system releases it when the process dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = (folder / "lock").open("w")
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written to ({error.strerror})") from error
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def tidy(folder: Path) -> None:
    """Remove the half-written files of a process that was killed. Call this only with the lock.

    `failures.json` stays, since sweeps write it without the lock. Files of other programs stay as well.
    """
    ours = ("config.json", "result.json", "metrics.jsonl", "checkpoint.safetensors", "weights.safetensors")
    for file in (file for name in ours for file in folder.glob(f".{name}.*")):
        file.unlink()


def finished_epochs(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0
