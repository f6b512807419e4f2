"""Real processes, really killed: nothing is lost, nothing is done twice."""

import random
import signal
import time

import pytest
from small_sweep import command as start_command
from small_sweep import found, store_in, wait_for_progress

from jacnorm.lab.config import RunConfig
from jacnorm.lab.sweep.local import LocalEngine
from jacnorm.lab.sweep.status import LiveView, status
from jacnorm.lab.sweep.store import MAX_ATTEMPTS

EPOCHS = 25  # long enough to be killed in
RUNS = tuple(RunConfig(method=m, seed=s, epochs=EPOCHS) for m in ("none", "spectral") for s in (0, 1))
EXPERIMENT = f"""
title = "Small"
[base]
epochs = {EPOCHS}
[grid]
method = ["none", "spectral"]
seed = [0, 1]
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    LocalEngine(store_in(folder), workers=2).run_all(RUNS, lambda running: None)
    assert set(found(folder)) == {run.id for run in RUNS}
    return found(folder)


def command(folder, *more):
    return start_command(folder, EXPERIMENT, "--workers", "2", *more)


def test_a_worker_that_is_killed_costs_its_last_epoch_and_not_the_sweep(tmp_path, undisturbed):
    store, killed = store_in(tmp_path), []
    engine = LocalEngine(store, workers=2)
    started = engine._start

    def kill_one_once(running):
        for worker in workers:
            if not killed and store.epoch(worker.config) >= 2 and worker.process.poll() is None:
                worker.process.send_signal(signal.SIGKILL)
                killed.append(worker.config)

    workers = []

    def remember(config):
        workers.append(started(config))
        return workers[-1]

    engine._start = remember
    engine.run_all(RUNS, kill_one_once)
    assert len(killed) == 1
    assert store.failures(killed[0]) == ["killed by SIGKILL (out of memory?)"]
    assert found(tmp_path) == undisturbed
    log = (store.run_folder(killed[0]) / "log.txt").read_text()
    assert "Going on after epoch" in log


def test_a_run_that_fails_is_tried_twice_more_and_then_listed(tmp_path):
    store = store_in(tmp_path)
    bad, good = RunConfig(learning_rate=1e6, epochs=2), RunConfig(epochs=1)
    with LiveView(store, (bad, good), "test") as view:
        LocalEngine(store, workers=2).run_all((bad, good), view.watch)
    assert len(store.failures(bad)) == MAX_ATTEMPTS
    seen = status(store, (bad, good))
    assert seen.done == (good,)
    ((config, reason),) = seen.failed
    assert config == bad
    assert "smaller learning rate" in reason
    assert "1 of 2 runs done, 0 running, 0 waiting, 1 failed" in str(seen)


@pytest.mark.parametrize("wanted", [4, pytest.param(20, marks=pytest.mark.long)])
def test_kills_of_the_whole_sweep_end_in_the_same_results(wanted, tmp_path, undisturbed):
    dice, store, kills = random.Random(0), store_in(tmp_path), 0
    while kills < wanted and not all(store.is_done(run) for run in RUNS):
        process = command(tmp_path)
        wait_for_progress(store, RUNS)
        time.sleep(dice.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    assert kills == wanted
    last = command(tmp_path)
    _, error = last.communicate(timeout=120)
    assert last.returncode == 0, error
    assert found(tmp_path) == undisturbed
    logs = []
    for run in RUNS:
        folder = tmp_path / "runs" / run.id
        assert not list(folder.glob(".*")), "a half-written file is left"
        assert not (folder / "failures.json").exists()
        logs.append((folder / "log.txt").read_text())
    assert any("Going on after epoch" in log for log in logs), "no kill hit a run in training"


def test_two_sweeps_on_one_folder_share_the_work(tmp_path, undisturbed):
    pair = [command(tmp_path), command(tmp_path)]
    for process in pair:
        _, error = process.communicate(timeout=180)
        assert process.returncode == 0, error
    assert found(tmp_path) == undisturbed
    for run in RUNS:  # each epoch was trained once
        log = (tmp_path / "runs" / run.id / "log.txt").read_text()
        assert log.count(f"epoch {EPOCHS:>3}/{EPOCHS}") == 1


def test_status_from_a_second_terminal(tmp_path):
    first = command(tmp_path)
    store = store_in(tmp_path)
    wait_for_progress(store, RUNS)
    shown, _ = command(tmp_path, "--status").communicate(timeout=60)
    assert "  running  " in shown
    assert first.wait(120) == 0
    first.communicate()
    shown, _ = command(tmp_path, "--status").communicate(timeout=60)
    assert shown.strip() == "4 of 4 runs done, 0 running, 0 waiting, 0 failed"


def test_ctrl_c_stops_the_workers_too(tmp_path):
    process = command(tmp_path)
    store = store_in(tmp_path)
    wait_for_progress(store, RUNS)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "go on with the same command" in out
    assert not any(store.is_running(run) for run in RUNS)
