"""A page of made-up numbers, with every table and figure that there is."""

import math
from pathlib import Path

import pytest
from made_results import full, record, screen

from jacnorm.lab.cli import main
from jacnorm.lab.evaluate.adversarial import ATTACKS
from jacnorm.lab.evaluate.times import KINDS
from jacnorm.lab.reproduce.catalog import find_items
from jacnorm.lab.reproduce.runs import subjects

EXPERIMENTS = Path(__file__).parents[3] / "paper"
RANKS = {"none": 0, "weight-decay": 1, "spectral-bound": 2, "frobenius": 3, "spectral": 4, "spectral-warm": 5}


def accuracies(label):
    return [95 + 0.3 * RANKS[label] + 0.1 * math.sin(seed + RANKS[label]) for seed in range(5)]


def best(config):
    right = config.label == "none" or config.weight == 0.01
    return right and config.batch_size == 16 and config.learning_rate == 0.01


def robustness(m, network):
    x = 0.02 * RANKS[network.label] + 0.01 * network.config.seed
    curve = {kind: m.queries if kind == "square" else m.steps for kind in ATTACKS}
    attack = {
        kind: {
            "epsilons": [m.epsilon / 255],
            "iterations": list(strengths),
            "clean": 0.95,
            "last": [[0.95 - (0.8 - x) * i / len(strengths) for i in range(len(strengths))]],
            "worst": [[0.95 - (0.85 - x) * i / len(strengths) for i in range(len(strengths))]],
        }
        for kind, strengths in curve.items()
    }
    noise = {"variances": list(m.variances), "drop": [v * (2 - x) for v in m.variances], "clean": 0.95}
    judged = {
        "attacks": ["apgd-ce", "apgd-t", "fmn", "square"],
        "robust": [0.3 + x, 0.2 + x, 0.2 + x, 0.1 + x],
    }
    return {"noise": noise, "attacks": attack, "judge": {**judged, "clean": 0.95, "epsilon": m.epsilon / 255}}


def distances(m, network):
    scale = 1 + 0.1 * RANKS[network.label] + 0.02 * network.config.seed
    kinds = {"first_order": 1.0, "attack": 0.9, "sampled": 5.0}
    lines = {kind: [scale * size * (0.2 + i / 100) for i in range(101)] for kind, size in kinds.items()}
    return {"boundary": {**lines, "points": 1700, "left_out": 300, "directions": m.directions}}


def cost(m, network):
    ratio = {
        kind: [0.3 + i + 0.01 * network.config.seed] * len(m.batch_sizes) for i, kind in enumerate(KINDS)
    }
    warm = [0.03 / r for r in m.rounds] if network.label == "spectral-warm" else None
    errors = {"random": [0.25 / r for r in m.rounds], "lanczos": [0.2**r for r in m.rounds], "warm": warm}
    estimation = {**errors, "iterations": list(m.rounds), "bound": 30.0 + network.config.seed}
    return {"cost": {"times": {"batch_sizes": list(m.batch_sizes), "ratio": ratio}, "estimation": estimation}}


PARTS = {3: robustness, 4: distances, 5: cost}


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "results"
    for item in find_items(EXPERIMENTS, "all", "kmnist", folder):
        if item.figure is None:
            screen(item.table, lambda config: 0.1 if best(config) else 0.2)
            full(item.table, {label: accuracies(label) for label in RANKS}, best)
            continue
        measurement = item.figure.measurement
        for network in subjects(item.figure, item.table).networks:
            parts = PARTS[item.figure.figure](measurement, network)
            record(item.figure.results, network.config, measurement.kinds(network), parts)
    return folder


@pytest.fixture(scope="session")
def page(results, tmp_path_factory):
    """The file that the command writes, with reproduction.md beside it."""
    folder = tmp_path_factory.mktemp("page")
    out, markdown = folder / "report.html", folder / "reproduction.md"
    where = ["--results", str(results), "--experiments", str(EXPERIMENTS)]
    assert main(["report", *where, "--out", str(out), "--markdown", str(markdown)]) == 0
    return out
