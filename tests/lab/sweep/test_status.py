"""The status of a sweep, which is read from files alone."""

import io
import json
import subprocess

import pytest
from made_results import changed, cut, publish

from jacnorm.lab.config import RunConfig
from jacnorm.lab.sweep import run as status_module
from jacnorm.lab.sweep.experiment import names
from jacnorm.lab.sweep.run import LiveView, status
from jacnorm.lab.sweep.store import MAX_ATTEMPTS, Store

DONE, FAILED, LOCKED, WAITING = RUNS = tuple(RunConfig(seed=seed) for seed in range(4))


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "my.jsonl", tmp_path / "runs")
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
            f"  running  spectral-warm 0.01 s2 ({LOCKED.id})  epoch 2/50\n"
            f"  failed   spectral-warm 0.01 s1 ({FAILED.id})  reason 2"
        )
    assert status(store, RUNS).waiting == ((LOCKED, 2), (WAITING, 0))  # a stopped run is not lost
    assert f"  waiting  spectral-warm 0.01 s2 ({LOCKED.id})  epoch 2/50" in str(status(store, RUNS))
    assert WAITING.id not in str(status(store, RUNS))


def test_a_process_that_has_not_begun_yet_is_running(store):
    with store.starting(WAITING) as held:
        process = subprocess.Popen(["sleep", "60"], pass_fds=[held.fileno()])
    try:
        assert status(store, RUNS).running == ((WAITING, 0),)
    finally:
        process.kill()
        process.wait()
    assert status(store, RUNS).running == ()


def test_names_tell_runs_apart():
    plain, warm = RunConfig(warm_start=False), RunConfig()
    none, fast = RunConfig(method="none"), RunConfig(method="none", learning_rate=0.1)
    assert list(names([plain, warm, none, fast]).values()) == [
        "spectral 0.01 s0, learning_rate 0.01",
        "spectral-warm 0.01 s0, learning_rate 0.01",
        "none s0, learning_rate 0.01",
        "none s0, learning_rate 0.1",
    ]
    assert names([RunConfig(net="lenet"), RunConfig(method="weight-decay", net="lenet")])[
        warm_id(net="lenet")
    ] == ("spectral-warm 0.01 s0")


def warm_id(**settings):
    return RunConfig(**settings).id


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
        publish(store.results, WAITING, 90.0, loss=0.125)
        view.watch([])
    assert capsys.readouterr().err.splitlines() == [
        "test: 4 runs, 1 already done",
        f"[2/4] failed  spectral-warm 0.01 s1 ({FAILED.id})  reason 2",
        f"[3/4] done    spectral-warm 0.01 s3 ({WAITING.id})  validation loss 0.1250",
    ]


def test_a_log_file_hears_of_runs_under_way(store, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(status_module.time, "monotonic", lambda: now[0])
    with LiveView(store, RUNS, "test") as view:
        view.watch([LOCKED])
        store.run_folder(LOCKED).mkdir(parents=True)
        (store.run_folder(LOCKED) / "metrics.jsonl").write_text("{}\n" * 20)
        now[0] = 61.0
        view.watch([LOCKED])
        now[0] = 62.0
        view.watch([LOCKED])
    *_, last = capsys.readouterr().err.splitlines()
    # 50 runs were done before, 50 are given up, and 20 took a minute. So 80 are left.
    assert last == "120 of 200 epochs, about 4:04 left; 2/4 runs; spectral-warm 0.01 s2 20/50"


def test_the_bar_counts_a_run_once(store, monkeypatch):
    """Its result may be there before its process ends."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", screen)
    store.run_folder(DONE).mkdir(parents=True)
    (store.run_folder(DONE) / "metrics.jsonl").write_text("{}\n" * 50)
    with LiveView(store, (DONE, WAITING), "test") as view:
        view.watch([DONE, WAITING])
    shown = screen.getvalue()
    assert "50/100" in shown
    assert "1/2 runs; spectral-warm 0.01 s3 0/50" in shown
    assert "s0 50/50" not in shown


def test_a_file_that_was_cut_short_is_named(store, capsys):
    line = changed(store.results, DONE, cut)
    with LiveView(store, RUNS, "test"):
        pass
    told = capsys.readouterr().err
    assert "test: 4 runs\n" in told
    assert f"warning: {line}: cut short or not JSON" in told
    assert told.endswith("its run is made again\n")


def test_a_result_of_a_newer_version_is_named_and_the_sweep_goes_on(store, capsys):
    newer = json.dumps({"version": 2, "id": DONE.id, "all": "new"})
    line = changed(store.results, DONE, lambda _: newer)
    with LiveView(store, RUNS, "test") as view:
        view.watch([])
    assert f"warning: {line}: of version 2" in capsys.readouterr().err
