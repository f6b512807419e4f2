from pathlib import Path

import pytest

from jacnorm.lab.config import ConfigError, read_toml
from jacnorm.lab.sweep.experiment import read_experiment

EXPERIMENTS = Path(__file__).parents[3] / "paper"
PAPER = """
title = "Table 1, KMNIST"
[base]
data = "kmnist"
net = "lenet"
[grid]
learning_rate = [0.01, 0.001]
batch_size = [16, 32]
weight = [1e-4, 1e-3, 1e-2, 1e-1]
method = ["none", "weight-decay", "spectral-bound", "frobenius", "spectral"]
seed = [0, 1, 2, 3, 4]
[screening]
epochs = 10
[paper]
spectral = [96.61, 0.14]
"""

GRID = "[grid]\nmethod = ['none', 'spectral']"


def read(folder: Path, text: str):
    file = folder / "mine.toml"
    file.write_text(text)
    return read_experiment(file)


def test_the_papers_grid(tmp_path):
    experiment = read(tmp_path, PAPER)
    assert len(experiment.runs) == 68 * 5  # 4 settings of `none`, 16 of each other method
    assert len({run.id for run in experiment.runs}) == len(experiment.runs)
    assert {run.epochs for run in experiment.runs} == {50}
    first = experiment.screening_runs()
    assert len(first) == 68
    assert {(run.epochs, run.seed) for run in first} == {(10, 0)}
    assert experiment.paper["spectral"] == [96.61, 0.14]


def test_random_and_warm_starts_are_chosen_as_two_methods(tmp_path):
    experiment = read(tmp_path, PAPER.replace("[grid]", "[grid]\nwarm_start = [false, true]"))
    first = experiment.screening_runs()
    assert len(first) == 68 + 16  # the other methods do not use it
    second = experiment.chosen_runs({run.id: 1.0 for run in first})
    labels = [run.label for run in second]
    assert {label: labels.count(label) for label in labels} == dict.fromkeys(
        ["none", "weight-decay", "spectral-bound", "frobenius", "spectral", "spectral-warm"], 5
    )


def test_the_best_of_each_method_is_trained_in_full(tmp_path):
    experiment = read(tmp_path, PAPER)
    first = experiment.screening_runs()
    losses = {run.id: 1.0 + i for i, run in enumerate(first)}
    best = {"none": 3, "weight-decay": 5, "spectral": 7}
    for method, position in best.items():
        chosen = [run for run in first if run.method == method][position % 4]
        losses[chosen.id] = 0.1
        best[method] = chosen
    second = experiment.chosen_runs(losses)
    assert len(second) == 5 * 5  # five methods, five seeds
    for method, run in best.items():
        mine = [r for r in second if r.method == method]
        assert {r.seed for r in mine} == {0, 1, 2, 3, 4}
        assert {r.epochs for r in mine} == {50}
        assert {(r.learning_rate, r.batch_size) for r in mine} == {(run.learning_rate, run.batch_size)}
        assert method == "none" or {r.weight for r in mine} == {run.weight}


def test_a_method_whose_runs_all_failed_is_left_out(tmp_path):
    experiment = read(tmp_path, PAPER)
    losses = {run.id: 1.0 for run in experiment.screening_runs() if run.method != "weight-decay"}
    assert {run.method for run in experiment.chosen_runs(losses)} == {
        *("none", "spectral-bound", "frobenius", "spectral")
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[gird]\nseed = [1]", "no section 'gird'"),
        ("[grid]\nseed = 1", "seed must be a list"),
        ("[grid]\nseed = []", "seed must be a list"),
        ("[grid]\nseeds = [1]", "did you mean 'seed'"),
        ("[base]\nmethod = 'l3'", "method = 'l3'"),
        ("[screening]\nrounds = 3", "takes epochs alone"),
        ("[screening]", "takes epochs alone"),
        ("[screening]\nepochs = 'ten'", "epochs = 'ten': .* a whole number"),
        ("[screening]\nepochs = 0", "epochs = 0: .* from 1 to 50"),
        ("[screening]\nepochs = 51", "epochs = 51: .* from 1 to 50, the length of a run in full"),
        ("[paper]\nspectral = 96.6", "spectral = 96.6: a mean and a standard deviation"),
        ("[paper]\nspectral = [96.6, 'little']", "a mean and a standard deviation"),
        ("[paper]\nspectral-bond = [96.6, 0.1]", "did you mean 'spectral-bound'"),
        ("", "asks for no runs"),
        ("title = 'x'", r"neither \[base\] nor \[grid\]"),
        ("[grid]\nseed = [0, 1, 0]", "seed has 0 twice"),
        (
            "[base]\nweight = -0.1",
            r"mine\.toml: weight = -0\.1: it must be positive; method = \"none\"",
        ),
        ("[base]\nmethod = 'spectral-warm'", 'write method = "spectral" and warm_start = true'),
        (
            f"{GRID}\n[[claims]]\ntext = 'x'\nmore = 'l3'\nless = 'none'",
            "about 'l3', .*; it has none, spectral-warm$",
        ),
        (f"{GRID}\n[[claims]]\ntext = 'x'\nwithin = 1\nmethods = ['none', 'l2']", "about 'l2'"),
        (
            f"{GRID}\n[[claims]]\ntext = 'x'\nmore = 'spectral'\nless = 'none'",
            r"about 'spectral', which the grid does not have; it has .*spectral-warm \(.*warm_start = true",
        ),
        (
            f"{GRID}\n[[claims]]\ntext = 'x'\nmore = 'spectral-bound-kernel'\nless = 'none'",
            r'"spectral-bound" is called spectral-bound-kernel with convolution = "kernel", else spectral-b',
        ),
        (
            f"{GRID}\n[[claims]]\ntext = 'x'\nquantity = 'acuracy'\nwithin = 1",
            "there are accuracy, best_accuracy, late_accuracy;",
        ),
        ("claims = 5\n[base]\nseed = 1", r"\[\[claims\]\], in double brackets"),
        ("base = 5", r"base = 5: a section is needed, \[base\]"),
        ("screening = 5\n[base]\nseed = 1", r"a section is needed, \[screening\]"),
        ("title = 5\n[base]\nseed = 1", "title = 5: a text is needed"),
        ("[grid]\ndata = ['kmnist', 'digits']", "an experiment has only one data"),
        ("[grid]\nprotocol = ['paper', 'held-out']", "an experiment has only one protocol"),
        ("[grid]\nepochs = [1, 2]\n[screening]\nepochs = 1", r"epochs belongs in \[base\]"),
    ],
)
def test_bad_files(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


OURS = [file for file in EXPERIMENTS.glob("*/*.toml") if "figure" not in read_toml(file)]


@pytest.mark.parametrize("file", sorted(OURS), ids=lambda file: file.stem)
def test_ours_can_be_read(file):
    assert read_experiment(file).runs


def test_a_figure_is_not_swept():
    with pytest.raises(ConfigError, match="see jacnorm reproduce"):
        read_experiment(EXPERIMENTS / "figure3-kmnist" / "experiment.toml")


def test_the_papers_cifar10():
    """Appendix A.2: 100 epochs, batches of 128, cosine from 0.1, crops and flips. Only λ is searched."""
    runs = read_experiment(EXPERIMENTS / "table1-cifar10" / "experiment.toml").runs
    assert (
        len(runs) == (1 + 5 * 5) * 5
    )  # none, and five other methods with five λ each. Spectral with its two starts counts twice
    shared = {
        (r.net, r.epochs, r.batch_size, r.momentum, r.schedule, r.learning_rate, r.augment) for r in runs
    }
    assert shared == {("vgg16", 100, 128, 0.8, "cosine", 0.1, True)}
    assert {r.weight for r in runs if r.method != "none"} == {1e-5, 1e-4, 1e-3, 1e-2, 1e-1}


def test_another_protocol_has_results_of_its_own(tmp_path):
    experiment = read(tmp_path, PAPER)
    assert experiment.with_protocol("paper") is experiment
    held_out = experiment.with_protocol("held-out")
    assert held_out.name == "mine-held-out"
    assert {run.protocol for run in held_out.screening_runs()} == {"held-out"}
    assert not {run.id for run in held_out.runs} & {run.id for run in experiment.runs}
