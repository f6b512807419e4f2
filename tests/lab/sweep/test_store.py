"""Damaged files of results, and results of a neighbouring experiment."""

import json

import pytest
from made_results import changed, cut, diverge, publish

from jacnorm.lab.config import RunConfig
from jacnorm.lab.results import NewerVersionError, read_results
from jacnorm.lab.sweep.store import Store

CONFIG = RunConfig(method="none")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "my.jsonl", tmp_path / "runs")


def test_a_line_says_which_version_it_is_of(store):
    publish(store.results, CONFIG, 90.0)
    (line,) = store.results.read_text().splitlines()
    assert json.loads(line)["version"] == 1
    assert store.is_done(CONFIG)
    assert store.result(CONFIG)["test"]["accuracy"] == 0.9


def test_lines_from_before_versions_are_read(store):
    publish(store.results, CONFIG, 90.0)
    changed(store.results, CONFIG, lambda line: line.replace('"version": 1, ', ""))
    assert store.result(CONFIG)["id"] == CONFIG.id


def test_a_line_that_was_damaged_is_named_and_its_run_is_to_be_made_again(store):
    publish(store.results, RunConfig(seed=7), 80.0)
    publish(store.results, CONFIG, 90.0)
    line = changed(store.results, CONFIG, cut)
    assert not store.is_done(CONFIG)
    assert store.is_done(RunConfig(seed=7))
    (warning,) = read_results(store.results).warnings
    assert warning.startswith(f"{line}: cut short or not JSON")
    publish(store.results, CONFIG, 91.0)
    assert store.result(CONFIG)["test"]["accuracy"] == 0.91


@pytest.mark.parametrize("content", ["[]", "{}", "3", '{"id": "x", "config": {}, "test": {}}', ""])
def test_json_that_is_no_result_is_not_done_either(store, content):
    publish(store.results, CONFIG, 90.0)
    changed(store.results, CONFIG, lambda _: content)
    assert not store.is_done(CONFIG)
    assert len(read_results(store.results).warnings) == 1


def test_a_run_of_a_newer_version_is_neither_read_nor_made_again(store):
    publish(store.results, CONFIG, 90.0)
    newer = json.dumps({"version": 2, "id": CONFIG.id, "all": "new"})
    changed(store.results, CONFIG, lambda _: newer)
    assert store.is_done(CONFIG)
    with pytest.raises(NewerVersionError, match="line 1: of version 2, this jacnorm reads up to 1"):
        store.result(CONFIG)
    publish(store.results, CONFIG, 90.0)
    assert store.results.read_text() == newer + "\n"


def test_what_a_killed_process_left_half_written_in_runs_is_tidied_up(store):
    """Files that other processes may be writing stay."""
    folder = store.run_folder(CONFIG)
    mine, theirs = folder / ".checkpoint.safetensors.x1y2", folder / ".failures.json.x1y2"
    folder.mkdir(parents=True)
    mine.touch()
    theirs.touch()
    store.tidy(CONFIG)
    assert not mine.exists()
    assert theirs.exists()


def test_a_run_of_another_experiment_is_not_trained_again(tmp_path):
    mine, own = Store(tmp_path / "mine.jsonl", tmp_path / "runs"), RunConfig(net="my_nets:small")
    publish(tmp_path / "earlier.jsonl", CONFIG, 80.0)
    changed(tmp_path / "earlier.jsonl", CONFIG, lambda _: "{")
    publish(tmp_path / "other.jsonl", CONFIG, 90.0)
    publish(tmp_path / "other.jsonl", own, 90.0)  # its code may have changed since
    for config in (CONFIG, own):
        mine.adopt(config)
    assert mine.result(CONFIG) == Store(tmp_path / "other.jsonl", tmp_path / "runs").result(CONFIG)
    assert not mine.is_done(own)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("paper/table1-kmnist/results.jsonl", "paper/checks/rate.jsonl"),
        ("paper/checks/rate.jsonl", "paper/table1-kmnist/results.jsonl"),
        ("paper/checks/rate.jsonl", "paper/checks/weight.jsonl"),
        ("my.jsonl", "other.jsonl"),
    ],
)
def test_what_lies_beside_an_experiment(mine, theirs, tmp_path):
    publish(tmp_path / theirs, CONFIG, 90.0)
    store = Store(tmp_path / mine, tmp_path / "runs")
    store.adopt(CONFIG)
    assert store.is_done(CONFIG)


def test_what_is_there_is_not_taken_over(tmp_path):
    mine = Store(tmp_path / "mine.jsonl", tmp_path / "runs")
    publish(mine.results, CONFIG, 80.0)
    publish(tmp_path / "another.jsonl", CONFIG, 90.0)
    mine.adopt(CONFIG)
    assert mine.result(CONFIG)["test"]["accuracy"] == 0.8


def test_a_run_that_diverged_has_the_worst_loss(store):
    diverge(store.results, CONFIG)
    assert store.is_done(CONFIG)
    assert store.loss(CONFIG) == float("inf")
    assert store.divergence(CONFIG) == "too far"
