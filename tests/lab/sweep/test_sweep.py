"""Real processes are killed. Nothing is lost, and nothing is done twice."""

import json
import random
import re
import signal
import time
from pathlib import Path

import pytest
from small_sweep import (
    EPOCHS,
    command,
    damaged_run,
    found,
    is_under_way,
    log_of,
    runs_of,
    store_in,
    wait_for_progress,
)

from jacnorm.lab.cli import main
from jacnorm.lab.sweep.experiment import read_experiment
from jacnorm.lab.sweep.pool import LocalPool
from jacnorm.lab.sweep.run import LiveView, status
from jacnorm.lab.sweep.store import MAX_ATTEMPTS

RUNS = runs_of()


class Remembers(LocalPool):
    """A pool that remembers the workers it started."""

    def _start(self, config):
        self.started = [*getattr(self, "started", ()), super()._start(config)]
        return self.started[-1]


def test_a_killed_worker_costs_an_epoch_and_a_hopeless_run_is_given_up(tmp_path, undisturbed):
    store, killed = store_in(tmp_path), []
    good, bad = RUNS[0], damaged_run(store)
    for _ in range(MAX_ATTEMPTS - 1):
        store.add_failure(bad, "before")
    pool = Remembers(store, workers=2)

    with LiveView(store, (good, bad), "test") as view:

        def watch(running):
            view.watch(running)
            for worker in pool.started:
                if not killed and worker.config == good and is_under_way(store, good):
                    worker.process.send_signal(signal.SIGKILL)
                    killed.append(good)

        pool.run_all((good, bad), watch)
    assert killed
    assert store.failures(good) == ["killed by SIGKILL (out of memory?)"]
    assert "Going on after epoch" in log_of(store, good)
    assert found(tmp_path) == {good.id: undisturbed()[good.id]}
    assert len(store.failures(bad)) == MAX_ATTEMPTS
    seen = status(store, (good, bad))
    assert seen.done == (good,)
    ((config, reason),) = seen.failed
    assert config == bad
    assert "not a readable safetensors file" in reason
    assert [worker.config for worker in pool.started].count(bad) == 1


def test_a_run_that_diverges_is_a_result(tmp_path, monkeypatch, capsys):
    """The same settings would diverge again. So the run is not repeated, and never chosen."""
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(
        'base = {method = "none", batch_size = 256, epochs = 2}\nscreening = {epochs = 1}\n'
        "grid = {learning_rate = [0.01, 1e6], seed = [0, 1]}"
    )
    assert main(["sweep", "small.toml"]) == 0
    told = capsys.readouterr()
    good, bad = read_experiment(Path("small.toml")).screening_runs()
    store = store_in(tmp_path)
    assert store.failures(bad) == []
    assert f"({bad.id})  diverged: Epoch 1, step" in told.err
    assert "4 of 4 runs done, 0 running, 0 waiting, 0 failed, 1 of those done diverged" in told.out
    assert re.search(rf"^  diverged none s0, .*\({bad.id}\)  Epoch 1, step", told.out, re.MULTILINE)
    assert (
        "Diverged, so never chosen and without an accuracy: none s0, epochs 1, learning_rate 1000000.0"
        in told.out
    )
    assert "missing" not in told.out
    assert store.loss(good) < store.loss(bad) == float("inf")
    for line in store.results.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # no NaN, since other programs read the file
    folders = [str(store.run_folder(run)) for run in (bad, good)]
    assert main(["evaluate", *folders, "--noise", "--images", "20"]) == 0
    assert f"{store.run_folder(bad)}: left out, it diverged" in capsys.readouterr().err
    assert main(["evaluate", folders[0], "--noise"]) == 2
    assert "has no network, it diverged. Epoch 1, step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "epochs"), [(1, EPOCHS), pytest.param(20, 10 * EPOCHS, marks=pytest.mark.long)]
)
def test_kills_of_the_whole_sweep_end_in_the_same_results(
    wanted, epochs, tmp_path, undisturbed, monkeypatch, capsys
):
    """Afterwards two sweeps on one folder share the remaining runs."""
    dice, store, runs = random.Random(0), store_in(tmp_path), runs_of(epochs)
    for _ in range(wanted):
        process = command(tmp_path, runs, "--workers", "2")
        wait_for_progress(store, runs)
        time.sleep(dice.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not all(store.is_done(run) for run in runs), "too late for the last kill"
    pair = [command(tmp_path, runs, "--workers", "1") for _ in range(2)]
    for process in pair:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error
    assert found(tmp_path) == undisturbed(epochs)
    assert any("Going on after epoch" in log_of(store, run) for run in runs), "no kill hit a run in training"
    for run in runs:
        assert list(store.run_folder(run).glob(".*")) == [], "a half-written file is left"
        assert store.failures(run) == []
        told = re.findall(rf"^epoch +(\d+)/{epochs} ", log_of(store, run), flags=re.MULTILINE)
        assert len(set(told)) == len(told) >= epochs - wanted, "an epoch was kept and trained again"
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "small.toml", "--status"]) == 0
    assert capsys.readouterr().out == "3 of 3 runs done, 0 running, 0 waiting, 0 failed\n"


def test_status_from_a_second_terminal_and_ctrl_c(tmp_path, monkeypatch, capsys):
    process, store = command(tmp_path, RUNS, "--workers", "2"), store_in(tmp_path)
    wait_for_progress(store, RUNS)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "small.toml", "--status"]) == 0
    assert "  running  " in capsys.readouterr().out
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "go on with the same command" in out
    assert not any(store.is_running(run) for run in RUNS)
