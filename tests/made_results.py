"""Hand-made results: networks that were never trained, with known numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from jacnorm.lab.config import RunConfig
from jacnorm.lab.results import append_result
from jacnorm.lab.sweep.experiment import Experiment
from jacnorm.lab.sweep.store import Store

ENVIRONMENT = {"jacnorm": "0.1.0", "torch": "2.13.0", "device": "cpu", "threads": 1}


def publish(file: Path, config: RunConfig, accuracy: float, loss: float = 1.0, sigma: float = 2.0) -> None:
    """The result of one run as a sweep writes it, accuracy in percent."""
    epoch = {"epoch": 1, "seconds": 60.0, "validation_loss": loss, "validation_accuracy": accuracy / 100}
    result = {
        "id": config.id,
        "config": asdict(config),
        "test": {"loss": loss, "accuracy": accuracy / 100, "sigma": sigma, "sigma_images": 500},
        "environment": ENVIRONMENT,
        "history": [epoch],
    }
    Store(file, file.parent / "no-runs").publish(config, json.loads(json.dumps(result)))


def diverge(file: Path, config: RunConfig) -> None:
    """The result of a run that diverged in its first epoch."""
    rest = {"test": None, "diverged": "too far", "environment": ENVIRONMENT, "history": []}
    Store(file, file.parent / "no-runs").publish(config, {"id": config.id, "config": asdict(config), **rest})


def screen(experiment: Experiment, losses) -> None:
    """Stage one; `losses` gives the validation loss of a config."""
    for config in experiment.screening_runs():
        publish(experiment.results, config, 50.0, losses(config))


def full(experiment: Experiment, accuracies: dict[str, list[float]], chosen) -> None:
    """Stage two: runs of the chosen setting of each label, with these accuracies for seeds 0, 1, …"""
    for config in experiment.runs:
        values = accuracies.get(config.label, [])
        if config.seed < len(values) and chosen(replace(config, seed=0)):
            publish(experiment.results, config, values[config.seed])


def record(file: Path, config: RunConfig, settings: dict, parts: dict) -> None:
    """A record of a figure."""
    content = {"id": config.id, "config": config.relevant(), "settings": settings, **parts}
    append_result(file, {**content, "environment": ENVIRONMENT})


def changed(file: Path, config: RunConfig, change) -> str:
    """Change a run's line as somebody might by hand; `change` gives the new text, or None to leave it out."""
    lines, result = file.read_text().splitlines(), ""
    for i, line in enumerate(lines):
        if f'"id": "{config.id}"' in line:
            lines[i] = change(line)
            result = f"{file}, line {i + 1}"
    file.write_text("".join(f"{line}\n" for line in lines if line is not None))
    assert result, "no such run"
    return result


def cut(line: str) -> str:
    return line[: len(line) // 2]
