"""Hand-made result files: networks that were never trained, with known numbers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from jacnorm.lab.config import RunConfig
from jacnorm.lab.results import write_record
from jacnorm.lab.sweep.experiment import Experiment
from jacnorm.lab.sweep.store import Store

ENVIRONMENT = {"jacnorm": "0.1.0", "torch": "2.13.0", "device": "cpu", "threads": 1}


def publish(results: Path, config: RunConfig, accuracy: float, loss: float = 1.0, sigma: float = 2.0) -> Path:
    """A result file of one run as a sweep writes it, accuracy in percent."""
    store = Store(results, results / "no-runs")
    epoch = {"epoch": 1, "seconds": 60.0, "validation_loss": loss, "validation_accuracy": accuracy / 100}
    result = {
        "id": config.id,
        "config": asdict(config),
        "test": {"loss": loss, "accuracy": accuracy / 100, "sigma": sigma, "sigma_images": 500},
        "environment": ENVIRONMENT,
        "history": [epoch],
    }
    store.publish(config, json.loads(json.dumps(result)))
    return store.result_file(config)


def diverge(results: Path, config: RunConfig) -> None:
    """The result file of a run that diverged in its first epoch."""
    rest = {"test": None, "diverged": "too far", "environment": ENVIRONMENT, "history": []}
    Store(results, results / "no-runs").publish(config, {"id": config.id, "config": asdict(config), **rest})


def screen(experiment: Experiment, results: Path, losses) -> None:
    """Stage one; `losses` gives the validation loss of a config."""
    for config in experiment.screening_runs():
        publish(results / experiment.name, config, 50.0, losses(config))


def full(experiment: Experiment, results: Path, accuracies: dict[str, list[float]], chosen) -> None:
    """Stage two: runs of the chosen setting of each label, with these accuracies for seeds 0, 1, …"""
    for config in experiment.runs:
        values = accuracies.get(config.label, [])
        if config.seed < len(values) and chosen(replace(config, seed=0)):
            publish(results / experiment.name, config, values[config.seed])


def record(results: Path, name: str, config: RunConfig, settings: dict, parts: dict) -> None:
    """A record of a figure."""
    content = {"id": config.id, "config": config.relevant(), "settings": settings, **parts}
    write_record(results / name / f"{config.id}.json", {**content, "environment": ENVIRONMENT})
