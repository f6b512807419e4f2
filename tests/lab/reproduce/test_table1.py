"""A hand-made results folder with known numbers gives a known table."""

import json
from dataclasses import replace

import pytest
from made_results import changed, cut, diverge, full, publish, screen

from jacnorm.lab.claims import read_claims
from jacnorm.lab.cli import main
from jacnorm.lab.report.content import collect
from jacnorm.lab.reproduce.catalog import Item
from jacnorm.lab.reproduce.runs import read_runs
from jacnorm.lab.reproduce.table1 import table1
from jacnorm.lab.sweep.experiment import read_experiment
from jacnorm.lab.sweep.pool import LocalPool
from jacnorm.lab.sweep.store import MAX_ATTEMPTS, Store

EXPERIMENT = """
title = "Table 1, hand-made"
[base]
data = "kmnist"
net = "lenet"
[grid]
method = ["none", "weight-decay", "spectral"]
warm_start = [false, true]
weight = [0.001, 0.01, 0.1]
seed = [0, 1, 2]
[paper]
none = [94.36, 0.26]
weight-decay = [95.58, 0.05]
spectral = [96.61, 0.14]
[[claims]]
text = "Spectral is more accurate than none"
more = "spectral"
less = "none"
"""
SCREENING = "[screening]\nepochs = 10\n"
ACCURACY = {
    "none": [94.0, 94.5, 95.0],  # mean 94.5, sd 0.5
    "weight-decay": [95.5, 95.6, 95.7],  # mean 95.6, sd 0.1
    "spectral": [96.4, 96.6, 96.8],  # mean 96.6, sd 0.2
    "spectral-warm": [96.9, 96.7, 96.8],  # mean 96.8, sd 0.1
}
CHOSEN = {"weight-decay": 0.001, "spectral": 0.01, "spectral-warm": 0.1}


def is_chosen(config):
    return config.label == "none" or config.weight == CHOSEN[config.label]


def loss(config):
    return 0.2 if is_chosen(config) else 0.3


@pytest.fixture
def experiment(tmp_path):
    file = tmp_path / "experiments" / "table1-kmnist.toml"
    file.parent.mkdir()
    file.write_text(EXPERIMENT + SCREENING)
    return read_experiment(file)


@pytest.fixture
def complete(experiment):
    screen(experiment, loss)
    full(experiment, ACCURACY, is_chosen)
    return experiment


def test_what_can_be_told_of_a_table(complete):
    """An epoch of these took a minute; its accuracy is known by the epoch as well."""
    quantities = table1(complete).quantities
    assert set(quantities["seconds"].stack()) == {60.0}
    assert (
        list(quantities["accuracy"]["weight-decay"])
        == list(quantities["best_accuracy"]["weight-decay"])
        == [95.5, 95.6, 95.7]
    )


def test_the_table(experiment, complete):
    accuracy, settings, *_ = table1(experiment).tables
    assert accuracy.header == ("method", "n", "ours", "paper", "difference", "in s.e.", "σ")
    # In standard errors: 0.14/√(0.5²/3 + 0.26²/5) = 0.4499, 0.02/√(0.1²/3 + 0.05²/5) = 0.3230,
    # −0.01/√(0.2²/3 + 0.14²/5) = −0.0761.
    assert accuracy.rows == (
        ("none", "3", "94.50 ± 0.50", "94.36 ± 0.26", "+0.14", "+0.4", "2.00 ± 0.00"),
        ("weight-decay", "3", "95.60 ± 0.10", "95.58 ± 0.05", "+0.02", "+0.3", "2.00 ± 0.00"),
        ("spectral", "3", "96.60 ± 0.20", "96.61 ± 0.14", "−0.01", "−0.1", "2.00 ± 0.00"),
        ("spectral-warm", "3", "96.80 ± 0.10", "–", "–", "–", "2.00 ± 0.00"),
    )
    assert accuracy.best == {(2, j) for j in range(len(accuracy.header))}  # of the paper's; ours is above it
    assert accuracy.marked_caption.endswith("Bold: the highest mean of the paper's methods.")
    titles = (
        "method",
        "learning rate",
        "batch size",
        "λ",
        "test loss",
        "next best",
        "in the end",
        "compared",
    )
    assert settings.header == titles
    ended = "1.000 ± 0.000"
    assert settings.rows == (
        ("none", "0.01", "32", "–", "0.200", "–", ended, "1 of 1"),
        ("weight-decay", "0.01", "32", "*0.001", "0.200", "0.300", ended, "3 of 3"),
        ("spectral", "0.01", "32", "0.01", "0.200", "0.300", ended, "3 of 3"),
        ("spectral-warm", "0.01", "32", "*0.1", "0.200", "0.300", ended, "3 of 3"),
    )


def test_agreement_with_the_paper_in_words(experiment, complete):
    assert table1(experiment).notes[2] == (
        "Within 2 standard errors of the paper's mean: “none”, “weight-decay”, “spectral”."
    )
    other = replace(experiment, paper={**experiment.paper, "none": [99.0, 0.1], "weight-decay": [90.0, 0.1]})
    assert table1(other).notes[2] == (
        "Within 2 standard errors of the paper's mean: “spectral”; further below: “none”; "
        "further above: “weight-decay”."
    )
    alone = replace(experiment, paper={"none": [99.0, 0.1]})
    assert table1(alone).notes[2] == (
        "Within 2 standard errors of the paper's mean: not one; further below: “none”."
    )


def test_epochs_that_might_count(experiment):
    screen(experiment, loss)
    none = [run for run in experiment.runs if run.label == "none"]
    for run, accuracy in zip(none, ([90, 95, 91], [95, 92, 93], [90, 95, 92]), strict=True):
        publish(experiment.results, run, accuracy[-1])
        history = {"validation_accuracy": [a / 100 for a in accuracy], "validation_loss": [0.2, 0.3, 0.4]}
        changed(
            experiment.results, run, lambda line, h=history: json.dumps({**json.loads(line), "history": h})
        )
    epochs = table1(experiment).tables[2]
    # Last 91, 93, 92; means 92, 93⅓, 92⅓; at the lowest loss 90, 95, 90; at best 95 in epochs 2, 1, 2.
    early = ("91.67 ± 2.89 (1)", "95.00 ± 0.00 (2)", "94.36 ± 0.26")
    assert epochs.rows == (("none", "3", "92.00 ± 1.00", "92.56 ± 0.69", *early),)
    claim = {"text": "x", "quantity": "best_accuracy", "more": "weight-decay", "less": "none"}
    full(experiment, {"weight-decay": [95.5, 95.4, 95.6]}, is_chosen)
    (found,) = table1(replace(experiment, claims=read_claims("", [claim]))).verdicts
    # 0.5, 0.4, 0.6 above 95: s.e. 0.1/√3, t = 8.66; ± 4.3027 s.e.; p = 1 − t/√(2 + t²)
    assert found.evidence == "weight-decay − none = +0.50 [+0.25, +0.75] points of accuracy, p = 0.013, n = 3"
    claim["quantity"] = "late_accuracy"
    (found,) = table1(replace(experiment, claims=read_claims("", [claim]))).verdicts
    assert found.evidence.startswith("weight-decay − none = +2.94 [")  # 95.5 − 92.556
    held_out = experiment.with_protocol("held-out")  # whose epochs are looked at on other images
    screen(held_out, loss)
    full(held_out, ACCURACY, is_chosen)
    assert "by the epoch that counts" not in table1(held_out).text()


def test_the_last_ten_epochs_are_averaged(experiment, complete):
    run = next(run for run in experiment.runs if run.label == "none" and run.seed == 0)
    accuracies = [0.0] * 5 + [0.9] * 5 + [0.8] * 5
    history = {"validation_accuracy": accuracies, "validation_loss": accuracies}
    changed(experiment.results, run, lambda line: json.dumps({**json.loads(line), "history": history}))
    assert read_runs(experiment).by_seed("late_accuracy")["none"][0] == pytest.approx(85.0)


def test_settings_that_differ_are_told_with_a_comparison(experiment):
    """Not λ, which each method has of its own."""
    slow = replace(
        experiment,
        runs=tuple(replace(r, learning_rate=0.1) if r.label == "none" else r for r in experiment.runs),
    )
    screen(slow, loss)
    full(slow, ACCURACY, is_chosen)
    (claim,) = table1(slow).verdicts
    assert claim.evidence.endswith(", n = 3; settings differ, too: learning rate 0.01 and 0.1")


def test_claims(experiment, complete):
    (claim,) = table1(experiment).verdicts
    # 2.4, 2.1, 1.8: mean 2.1, s.e. 0.3/√3, t = 12.12; ± 4.3027 s.e.; p = 1 − t/√(2 + t²)
    assert (claim.outcome, claim.evidence) == (
        "holds",
        "spectral − none = +2.10 [+1.35, +2.85] points of accuracy, p = 0.007, n = 3",
    )


def test_stages_and_protocol_go_with_the_numbers(experiment, complete):
    stages, protocol, _ = table1(experiment).notes  # and nothing is missing
    assert stages == (
        "Two-stage screening: 10 settings, 1 seed, 10 epochs; then the best of each method, 3 seeds, "
        "50 epochs."
    )
    assert "Protocol “paper”" in protocol
    for table in table1(experiment).tables:
        assert table.caption.endswith("(Protocol “paper”, two-stage screening.)")
    held_out = experiment.with_protocol("held-out")
    assert "Protocol “held-out”" in table1(held_out).notes[1]
    assert table1(held_out).empty


def test_a_cut_file_is_named_and_skipped(experiment, complete):
    (victim,) = (
        run for run in experiment.runs if run.label == "spectral" and run.seed == 1 and is_chosen(run)
    )
    line = changed(experiment.results, victim, cut)
    section = table1(experiment)
    (warning,) = section.warnings
    assert warning.startswith(f"{line}: cut short")
    assert warning.endswith(": skipped")
    assert section.tables[0].rows[2][:3] == ("spectral", "2 of 3", "96.60 ± 0.28")
    assert section.notes[-1] == "Still missing: 1 of 3 seeds of spectral."
    assert f"warning: {line}" in section.text()


def test_a_file_of_a_newer_version_is_named_and_skipped(experiment, complete, tmp_path, capsys):
    (newer,) = (
        run for run in experiment.runs if run.label == "weight-decay" and run.seed == 2 and is_chosen(run)
    )
    line = changed(experiment.results, newer, lambda text: text.replace('"version": 1', '"version": 2'))
    section = table1(experiment)
    (warning,) = section.warnings
    assert warning.startswith(f"{line}: of version 2")
    assert section.tables[0].rows[1][1] == "2 of 3"
    # Nothing is trained over what a newer version wrote.
    options = ["--experiments", str(tmp_path / "experiments"), "--data", "kmnist"]
    assert main(["reproduce", "table1", *options, "--runs", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr()
    assert "has results of a newer jacnorm, so nothing is trained" in printed.err
    assert f"warning: {line}: of version 2" in printed.out
    assert not (tmp_path / "runs").exists()


def test_files_of_other_runs_are_named_and_skipped(experiment, complete):
    stranger = replace(experiment.runs[0], batch_size=7)
    publish(experiment.results, stranger, 99.0)
    section = table1(experiment)
    (warning,) = section.warnings
    assert "1 result of runs that this experiment does not ask for" in warning
    assert stranger.id in warning
    assert section.tables[0].rows[0][2] == "94.50 ± 0.50"


def test_a_sweep_under_way_shows_what_is_there(experiment):
    for config in experiment.screening_runs():
        if config.label == "none" or (config.label == "weight-decay" and config.weight < 0.05):
            publish(experiment.results, config, 50.0, loss(config))
    full(experiment, {"none": [94.0]}, is_chosen)
    section = table1(experiment)
    assert section.notes[-1] == (
        "Still missing: 7 of 10 screening runs, so choices are provisional; 2 of 3 seeds of none; 3 of 3 "
        "seeds of weight-decay; all runs of spectral; all runs of spectral-warm."
    )
    accuracy, settings, epochs, _ = section.tables
    assert accuracy.rows == (
        ("none", "1 of 3", "94.00", "94.36 ± 0.26", "−0.36", "–", "2.00"),
        ("weight-decay", "0 of 3", "–", "95.58 ± 0.05", "–", "–", "–"),
        ("spectral", "0 of 3", "–", "96.61 ± 0.14", "–", "–", "–"),
        ("spectral-warm", "0 of 3", "–", "–", "–", "–", "–"),
    )
    assert accuracy.best == set()  # none is complete
    assert epochs.rows == (("none", "1", "94.00", "94.00", "94.00 (1)", "94.00 (1)", "94.36 ± 0.26"),)
    assert settings.rows[1][-1] == "2 of 3"
    assert {v.outcome for v in section.verdicts} == {"not tested"}
    assert section.under_way == "3 of 10 screening runs"


def test_without_the_papers_numbers_there_are_no_columns_for_them(experiment, complete):
    accuracy, *_ = table1(replace(experiment, paper={}, claims=())).tables
    assert accuracy.header == ("method", "n", "accuracy", "σ")
    assert {i for i, _ in accuracy.best} == {3}
    assert accuracy.marked_caption.endswith("Bold: the highest mean.")
    assert accuracy.rows[0] == ("none", "3", "94.50 ± 0.50", "2.00 ± 0.00")
    assert "paper's" not in accuracy.caption


def test_whatever_the_grid_varies_is_among_the_settings_chosen(experiment):
    nets = [replace(run, net=net) for run in experiment.runs for net in ("lenet", "mlp")]
    two = [run for run in nets if run.weight != 0.1]  # each of two values is at the edge
    grid = replace(experiment, runs=tuple(two), screening_epochs=None)
    for config in grid.runs:
        publish(grid.results, config, 90.0, 0.1 if config.net == "mlp" else 0.2)
    settings = table1(grid).tables[1]
    assert settings.header[3:] == ("λ", "net", "test loss", "next best", "compared")
    assert {row[4] for row in settings.rows} == {"mlp"}
    assert "*" not in "".join(map("".join, settings.rows))
    assert "asterisk" not in settings.caption


def test_how_far_it_is(experiment, complete):
    assert table1(experiment).under_way == ""
    (lost,) = (
        run for run in experiment.runs if run.label == "weight-decay" and run.seed == 2 and is_chosen(run)
    )
    changed(experiment.results, lost, lambda line: None)
    assert table1(experiment).under_way == "11 of 12 runs in full"


def test_nothing_at_all(experiment):
    section = table1(experiment)
    assert section.empty
    assert section.notes[-1] == "No results yet."


def test_the_whole_grid_is_chosen_from_by_mean_loss(experiment):
    """A setting with one lucky seed does not win over one that is good on average."""
    grid = replace(experiment, screening_epochs=None)
    lucky = {0: 0.1, 1: 0.9, 2: 0.9}
    for config in grid.runs:
        if config.label == "weight-decay":
            mean = lucky[config.seed] if config.weight == 0.01 else {0.001: 0.5, 0.1: 0.6}[config.weight]
            publish(grid.results, config, 90 + config.seed, mean)
    runs = read_runs(grid)
    ((label, choice),) = runs.choices.iterrows()
    assert (label, choice["config"].weight) == ("weight-decay", 0.001)
    assert (choice["loss"], choice["compared"], choice["settings"]) == (0.5, 3, 3)
    assert list(runs.networks["seed"]) == [0, 1, 2]
    assert table1(grid).notes[0] == "The whole grid: 10 settings, each with 3 seeds, 50 epochs."


def test_a_grid_under_way_is_chosen_from_where_most_seeds_are(experiment):
    grid = replace(experiment, screening_epochs=None)
    for config in grid.runs:
        if config.label == "weight-decay" and (config.weight == 0.1 or config.seed == 0):
            publish(grid.results, config, 90.0, 0.6 if config.weight == 0.1 else 0.1)
    ((_, choice),) = read_runs(grid).choices.iterrows()
    assert (choice["config"].weight, choice["compared"]) == (0.1, 1)  # one seed is not compared with three
    assert "settings of weight-decay, so their choices are provisional" in table1(grid).notes[-1]


def test_a_setting_that_diverged_is_compared_and_never_chosen(experiment):
    for config in experiment.screening_runs():
        if config.label == "weight-decay" and config.weight == 0.001:
            diverge(experiment.results, config)
        elif config.label == "weight-decay":
            publish(experiment.results, config, 10.0, 0.4)
    ((_, choice),) = read_runs(experiment).choices.iterrows()
    assert (choice["config"].weight, choice["compared"], choice["settings"]) == (0.01, 3, 3)


@pytest.mark.parametrize("screening", [None, 10])
def test_a_method_that_always_diverged_is_not_missing(screening, experiment, tmp_path):
    experiment = replace(experiment, screening_epochs=screening)
    first = experiment.screening_runs() if screening else experiment.runs
    for config in first:
        diverge(experiment.results, config)
    section = table1(experiment)
    assert (
        f"; and {len(first) - 8} more. Nothing else is there of none, spectral, spectral-warm, weight-decay"
        in section.notes[-1]
    )
    assert (section.tables, section.verdicts, section.under_way) == ((), (), "")
    content = collect([Item(tmp_path / "experiments" / f"{experiment.name}.toml", experiment)])
    assert (content.trained, content.time) == ("", "0 seconds")


def test_a_seed_that_diverged_is_neither_counted_nor_missing(experiment, complete):
    (lost,) = (
        run for run in experiment.runs if run.label == "weight-decay" and run.seed == 1 and is_chosen(run)
    )
    changed(experiment.results, lost, lambda line: None)
    diverge(experiment.results, lost)
    section = table1(experiment)
    assert (
        section.notes[-1]
        == "Diverged, so never chosen and without an accuracy: weight-decay 0.001 s1, epochs 50."
    )
    assert section.tables[0].rows[1][:2] == ("weight-decay", "2 of 3")
    assert section.under_way == ""
    assert {i for i, _ in section.tables[0].best} == {2}


def test_a_method_whose_seed_diverged_is_not_the_highest(experiment, complete):
    (lost,) = (run for run in experiment.runs if run.label == "spectral" and run.seed == 1 and is_chosen(run))
    changed(experiment.results, lost, lambda line: None)
    diverge(experiment.results, lost)
    assert {i for i, _ in table1(experiment).tables[0].best} == {1}


def test_nothing_is_the_highest_while_runs_are_to_come(experiment):
    screen(experiment, loss)
    full(experiment, {"none": ACCURACY["none"], "weight-decay": ACCURACY["weight-decay"]}, is_chosen)
    assert table1(experiment).tables[0].best == set()


def test_of_methods_that_the_paper_does_not_compare_none_is_the_highest(experiment, complete):
    accuracy, *_ = table1(replace(experiment, paper={"frobenius": (96.4, 0.1)})).tables
    assert accuracy.best == set()


def test_failed_runs_are_tried_again_when_asked(experiment, complete, tmp_path, monkeypatch, capsys):
    (lost,) = (
        run for run in experiment.runs if run.label == "weight-decay" and run.seed == 1 and is_chosen(run)
    )
    store = Store(experiment.results, tmp_path / "runs")
    changed(experiment.results, lost, lambda line: None)
    for _ in range(MAX_ATTEMPTS):
        store.add_failure(lost, "no luck")

    class Publishes(LocalPool):
        def run_all(self, configs, watch):
            for config in configs:
                if not self.store.has_failed(config):
                    publish(self.store.results, config, 95.6)

    monkeypatch.setattr("jacnorm.lab.commands.reproduce.LocalPool", Publishes)
    monkeypatch.setattr("jacnorm.lab.sweep.run.check_nets", lambda *_: None)
    command = ["reproduce", "table1", f"--runs={store.runs}"]
    command += [f"--experiments={tmp_path / 'experiments'}"]
    assert main(command) == 1
    told = capsys.readouterr()
    assert f"failed  {lost.id}  no luck" in told.err
    assert "1 run failed; fix the cause, then continue with --retry" in told.err
    assert "1 of 3 seeds of weight-decay" in told.out
    assert main([*command, "--retry"]) == 0
    assert "missing" not in capsys.readouterr().out


def test_the_command_prints_it_and_runs_nothing(experiment, complete, tmp_path, capsys):
    before = experiment.results.read_bytes()
    options = ["--experiments", str(tmp_path / "experiments"), "--reuse-only"]
    assert main(["reproduce", "table1", *options]) == 0
    printed = capsys.readouterr().out
    assert "spectral       3  96.60 ± 0.20  96.61 ± 0.14       −0.01     −0.1" in printed
    assert "HOLDS: Spectral is more accurate than none\n    spectral − none = +2.10 [+1.35," in printed
    assert before == experiment.results.read_bytes()
