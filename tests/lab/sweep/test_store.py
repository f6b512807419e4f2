"""Result files that are not what they should be."""

import json

import pytest
from made_results import diverge, publish

from jacnorm.lab.config import RunConfig
from jacnorm.lab.results import CutShortError, NewerVersionError, read_result, write_record
from jacnorm.lab.sweep.store import Store

CONFIG = RunConfig(method="none")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results", tmp_path / "runs")


def test_files_say_which_version_they_are_of(store):
    file = publish(store.results, CONFIG, 90.0)
    assert json.loads(file.read_text())["version"] == 1
    assert store.is_done(CONFIG)
    assert store.result(CONFIG)["test"]["accuracy"] == 0.9


def test_files_from_before_versions_are_read(store):
    file = publish(store.results, CONFIG, 90.0)
    content = json.loads(file.read_text())
    del content["version"]
    file.write_text(json.dumps(content))
    assert store.result(CONFIG)["id"] == CONFIG.id


def test_a_file_that_was_cut_short_is_to_be_made_again(store):
    file = publish(store.results, CONFIG, 90.0)
    file.write_text(file.read_text()[:200])
    assert not store.is_done(CONFIG)
    with pytest.raises(CutShortError, match=rf"{CONFIG.id}.json: cut short"):
        store.result(CONFIG)


@pytest.mark.parametrize("content", ["[]", "{}", '{"id": "x", "config": {}, "test": {}}'])
def test_json_that_is_no_result_is_not_done_either(store, content):
    publish(store.results, CONFIG, 90.0).write_text(content)
    assert not store.is_done(CONFIG)


def test_a_file_of_a_newer_version_is_neither_read_nor_replaced(store):
    file = publish(store.results, CONFIG, 90.0)
    file.write_text(json.dumps({"version": 2, "all": "new"}))
    assert store.is_done(CONFIG)
    with pytest.raises(NewerVersionError, match="of version 2, this jacnorm reads up to 1"):
        store.result(CONFIG)


def test_what_a_killed_process_left_half_written_is_tidied_up(store):
    """In runs/, and in results/, which people keep in git; what others may be writing just now stays."""
    publish(store.results, CONFIG, 90.0)
    folder, other = store.run_folder(CONFIG), RunConfig(seed=1)
    mine = [store.results / f".{CONFIG.id}.json.x1y2", folder / ".checkpoint.safetensors.x1y2"]
    theirs = [store.results / f".{other.id}.json.x1y2", folder / ".failures.json.x1y2"]
    folder.mkdir(parents=True)
    for file in mine + theirs:
        file.touch()
    store.tidy(CONFIG)
    assert [file.exists() for file in mine] == [False, False]
    assert all(file.exists() for file in [*theirs, store.result_file(CONFIG)])


def test_a_run_of_another_experiment_is_not_trained_again(tmp_path):
    mine, own = Store(tmp_path / "mine", tmp_path / "runs"), RunConfig(net="my_nets:small")
    publish(tmp_path / "earlier", CONFIG, 80.0).write_text("{")
    theirs = publish(tmp_path / "other", CONFIG, 90.0)
    publish(tmp_path / "other", own, 90.0)  # whose code may be another by now
    for config in (CONFIG, own):
        mine.adopt(config)
    assert mine.result_file(CONFIG).read_bytes() == theirs.read_bytes()
    assert not mine.is_done(own)


def test_what_is_there_is_not_taken_over(tmp_path):
    mine = Store(tmp_path / "mine", tmp_path / "runs")
    publish(mine.results, CONFIG, 80.0)
    publish(tmp_path / "another", CONFIG, 90.0)
    mine.adopt(CONFIG)
    assert mine.result(CONFIG)["test"]["accuracy"] == 0.8


def test_a_run_that_diverged_has_the_worst_loss(store):
    diverge(store.results, CONFIG)
    assert store.is_done(CONFIG)
    assert store.validation_loss(CONFIG) == float("inf")
    assert store.divergence(CONFIG) == "too far"


def test_records_are_for_people_to_review(tmp_path):
    file = tmp_path / "record.json"
    write_record(file, {"id": "a", "config": {}, "numbers": (1 / 3, None, 2), "rows": [[1.0, 2.0], []]})
    text = file.read_text()
    assert '"numbers": [0.333333, null, 2]' in text
    assert "[1.0, 2.0]" in text
    assert read_result(file) == json.loads(text)
    assert json.loads(text) == {
        "version": 1,
        "id": "a",
        "config": {},
        "numbers": [0.333333, None, 2],
        "rows": [[1.0, 2.0], []],
    }
