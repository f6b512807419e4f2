"""Shared by the tests of sweeps: small runs, results without times, the command in its own process."""

import json
import os
import subprocess
import sys
import time

from jacnorm.lab.config import RunConfig
from jacnorm.lab.sweep.store import Store

EPOCHS = 20  # epochs of a tenth of a second or less: long enough to kill a run within one
TIMING = {"seconds", "images_per_second", "sigma_cost"}


def runs_of(epochs=EPOCHS, seeds=(0, 1, 2)):
    return tuple(RunConfig(seed=seed, epochs=epochs, batch_size=256) for seed in seeds)


def experiment(runs):
    """The text of an experiment's file with these runs."""
    base = f"{{epochs = {runs[0].epochs}, batch_size = {runs[0].batch_size}}}"
    return f'title = "Small"\nbase = {base}\ngrid = {{seed = {[run.seed for run in runs]}}}'


def damaged_run(store):
    """A run that fails at every attempt."""
    run = RunConfig(seed=9, epochs=2)
    store.run_folder(run).mkdir(parents=True)
    (store.run_folder(run) / "checkpoint.safetensors").write_bytes(b"nonsense")
    return run


def store_in(folder):
    return Store(folder / "small.jsonl", folder / "runs")


def log_of(store, run):
    return store.log_file(run).read_text() if store.log_file(run).exists() else ""


def found(folder):
    """The results without times and environment."""
    results = {}
    for line in (folder / "small.jsonl").read_text().splitlines():
        result = json.loads(line)
        assert result["id"] not in results, "a run has two lines"
        history = {name: values for name, values in result["history"].items() if name not in TIMING}
        results[result["id"]] = (result["config"], result["test"], history)
    return results


def command(folder, runs, *options):
    (folder / "small.toml").write_text(experiment(runs))
    return subprocess.Popen(
        [sys.executable, "-m", "jacnorm", "sweep", "small.toml", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that its processes can be found
    )


def wait_for_progress(store, runs):
    """Waits until one more epoch is finished."""
    before, until = sum(store.epoch(run) for run in runs), time.monotonic() + 180
    while sum(store.epoch(run) for run in runs) <= before:
        assert time.monotonic() < until
        time.sleep(0.02)


def is_under_way(store, run):
    """Whether a run is training and not half done, so that there is time to interrupt it."""
    return 1 <= store.epoch(run) < EPOCHS // 2 and store.is_running(run)
