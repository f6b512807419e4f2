"""Training, from a config to a folder with weights, metrics and a result."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..errors import NonFiniteError
from .classification import score, start, train_epoch
from .config import RunConfig
from .data import DataSet, Split
from .progress import Progress
from .run import DivergedError, Run, Share, environment
from .run_files import RunFiles, marked

HELD_OUT = 1 / 6  # of the train split, under the protocol "held-out"


def train(
    config: RunConfig,
    data: DataSet,
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    resume: bool = False,
    progress: Progress | None = None,
    share: Share | None = None,
) -> dict[str, Any]:
    """Train to the end, with a checkpoint after every epoch, and return the result (also in result.json)."""
    progress, share = progress or Progress(quiet=True), share or Share()
    files = RunFiles(folder)
    run_data = trained_on(config, data).to(device)
    with torch.random.fork_rng():
        run = start(config, run_data, device, share)
        with share.first_goes_ahead():
            files.prepare(run, resume) if share.first else files.load(run)
        run.body = share.spread(run.model.body)
        try:
            with progress.training(config, len(run.history), len(run_data.train)):
                train_epochs(run, run_data, files, progress)
            test = validate(run, data.test.to(device), "the test split")
        except DivergedError as error:
            error.result = {**result_of(run, None, device), "diverged": str(error)}
            if share.first:
                files.write_result(error.result)
            raise
    result = result_of(run, test, device)
    if share.first:
        files.finish(run, result)
    return result


def trained_on(config: RunConfig, data: DataSet) -> DataSet:
    """With the split to validate on in the place of test."""
    return data.held_out(HELD_OUT, seed=0) if config.protocol == "held-out" else data


def train_epochs(run: Run, data: DataSet, files: RunFiles, progress: Progress) -> None:
    for epoch in range(len(run.history), run.config.epochs):
        metrics = train_epoch(run, data.train, epoch, progress)
        scores = validate(run, data.test)
        metrics |= {f"validation_{name}": value for name, value in scores.items()}
        run.history.append(metrics)
        if run.share.first:
            files.save_epoch(run)
        progress.epoch_done(metrics)


def result_of(run: Run, test: dict[str, float] | None, device: torch.device | str) -> dict[str, Any]:
    return {
        "id": run.config.id,
        "config": asdict(run.config),
        "test": test,
        "history": run.history,
        **marked(run),
        "environment": environment(device),
    }


def validate(run: Run, split: Split, where: str = "validation") -> dict[str, float]:
    """The last step of an epoch may be the one that went too far."""
    try:
        scores = score(run.model, split)
    except NonFiniteError as error:
        raise run.diverged(where, "The network's output has NaN or inf.") from error
    if not math.isfinite(scores["loss"]):
        raise run.diverged(where, f"The loss is {scores['loss']}.")
    return scores
