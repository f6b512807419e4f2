"""Which epoch the paper reports, on hand-made results with known numbers."""

import math
from dataclasses import asdict

import pytest
from made_results import ENVIRONMENT
from scipy import stats

from jacnorm.lab.reproduce.readings import readings
from jacnorm.lab.sweep.experiment import read_experiment
from jacnorm.lab.sweep.store import Store

TABLE = """
title = "Table 1, hand-made"
[base]
data = "kmnist"
net = "lenet"
learning_rate = {rate}
epochs = 20
[grid]
method = ["none", "weight-decay"]
seed = [0, 1, 2]
[screening]
epochs = {epochs}
[paper]
none = [94.0, 0.2]
weight-decay = [95.0, 0.1]
"""
LAST = {"none": [93.0, 93.2, 93.4], "weight-decay": [94.8, 95.0, 95.2]}
BEST = {"none": [93.9, 94.0, 94.1], "weight-decay": [94.8, 95.0, 95.2]}


def experiment(folder, name, rate, epochs):
    file = folder / f"{name}.toml"
    file.write_text(TABLE.format(rate=rate, epochs=epochs))
    return read_experiment(file)


def publish(experiment, config, last, best):
    history = [
        {"epoch": i, "seconds": 1.0, "validation_loss": 0.1, "validation_accuracy": accuracy / 100}
        for i, accuracy in ((1, best), (2, last))
    ]
    result = {
        "id": config.id,
        "config": asdict(config),
        "test": {"loss": 0.1, "accuracy": last / 100, "sigma": 1.0, "sigma_images": 500},
        "environment": ENVIRONMENT,
        "history": history,
    }
    Store(experiment.results, experiment.results.parent / "no-runs").publish(config, result)


def complete(experiment, methods=("none", "weight-decay")):
    for config in experiment.all_runs:
        if config.label in methods:
            publish(experiment, config, LAST[config.label][config.seed], BEST[config.label][config.seed])


def errors(values, mean, sd):
    """Welch's statistic, by hand."""
    ours = sum(values) / 3
    variance = sum((v - ours) ** 2 for v in values) / 2
    return (ours - mean) / math.sqrt(variance / 3 + sd**2 / 5)


def test_each_cell_by_both_readings(tmp_path):
    table = experiment(tmp_path, "table1-kmnist", 0.01, 10)
    complete(table)
    found = readings([[table]])
    none, decay = found.tables[0].rows
    assert none[:4] == ("hand-made, none", "94.00 ± 0.20", "93.20 ± 0.20", "−0.80")
    assert none[4] == f"{errors(LAST['none'], 94.0, 0.2):.1f}".replace("-", "−") == "−5.5"
    assert none[5:] == ("94.00 ± 0.10", "+0.00", "+0.0", "10 epochs, n = 3")
    assert decay[2:5] == ("95.00 ± 0.20", "+0.00", "+0.0")


def test_all_cells_together(tmp_path):
    """Fisher's statistic is −2 Σ ln p, chi squared with twice as many degrees of freedom as cells."""
    table = experiment(tmp_path, "table1-kmnist", 0.01, 10)
    complete(table)
    found = readings([[table]])
    variances = (0.2**2 / 3, 0.2**2 / 5)
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 2 + variances[1] ** 2 / 4)
    p = 2 * stats.t.sf(abs(errors(LAST["none"], 94.0, 0.2)), freedom)
    joint = stats.chi2.sf(-2 * math.log(p), 4)  # the other cell has p = 1
    last, best = found.tables[1].rows
    assert last == ("all", "2", "last epoch", "−0.40", "3.9", f"{joint:.3f}")
    assert best == ("all", "2", "best epoch", "+0.00", "0.0", "1.000")
    assert found.conclusion.startswith("The best epoch fits the paper's numbers, the other reading does not")


def test_a_cell_rests_on_the_longest_screening_that_is_whole(tmp_path):
    table = experiment(tmp_path, "table1-kmnist", 0.01, 10)
    longer = experiment(tmp_path, "longer", 0.001, 20)
    complete(table)
    complete(longer, ["weight-decay"])
    found = readings([[table, longer]])
    assert [row[-1] for row in found.tables[0].rows] == ["10 epochs, n = 3", "20 epochs, n = 3"]
    assert [row[:2] for row in found.tables[1].rows[2:]] == [
        ("settings chosen after training in full", "1")
    ] * 2


@pytest.mark.parametrize("seeds", [0, 1])
def test_a_method_needs_two_networks(tmp_path, seeds):
    table = experiment(tmp_path, "table1-kmnist", 0.01, 20)
    for config in table.runs:
        if config.seed < seeds:
            publish(table, config, 94.0, 94.0)
    assert readings([[table]]) is None
