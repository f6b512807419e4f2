"""What is said of a sweep, from files alone."""

import json

import pytest
from made_results import publish

from jacnorm.lab.config import RunConfig
from jacnorm.lab.sweep.status import LiveView, status
from jacnorm.lab.sweep.store import MAX_ATTEMPTS, Store

DONE, FAILED, LOCKED, WAITING = RUNS = tuple(RunConfig(seed=seed) for seed in range(4))


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "results", tmp_path / "runs")
    publish(store.results, DONE, 90.0, loss=0.25)
    for i in range(MAX_ATTEMPTS):
        store.add_failure(FAILED, f"reason {i}")
    return store


def test_status(store):
    with store.lock(LOCKED) as mine:
        assert mine
        (store.run_folder(LOCKED) / "metrics.jsonl").write_text("{}\n{}\n")
        assert str(status(store, RUNS)) == (
            "1 of 4 runs done, 1 running, 1 waiting, 1 failed\n"
            f"  running  {LOCKED.id}  epoch 2/50\n"
            f"  failed   {FAILED.id}  reason 2"
        )
    assert status(store, RUNS).waiting == (LOCKED, WAITING)


def test_looking_makes_nothing(store):
    status(store, RUNS)
    assert not store.run_folder(WAITING).exists()


def test_a_lock_is_for_one(store):
    with store.lock(LOCKED) as mine, store.lock(LOCKED) as too:
        assert (mine, too) == (True, False)
    with store.lock(LOCKED) as again:
        assert again


def test_a_log_file_hears_of_each_run_once(store, capsys):
    with LiveView(store, RUNS, "test") as view:
        view.watch([])
        view.watch([])
    assert capsys.readouterr().err.splitlines() == [
        f"[1/4] done    {DONE.id}  validation loss 0.2500",
        f"[2/4] failed  {FAILED.id}  reason 2",
    ]


def test_a_result_of_a_newer_version_is_named_and_the_sweep_goes_on(store, capsys):
    store.result_file(DONE).write_text(json.dumps({"version": 2, "all": "new"}))
    with LiveView(store, RUNS, "test") as view:
        view.watch([])
    assert f"done    {DONE.id}  warning: {store.result_file(DONE)}: of version 2" in capsys.readouterr().err
