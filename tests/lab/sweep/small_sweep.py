"""What the tests of sweeps share: folders, results without their timing, the command in a process."""

import json
import os
import subprocess
import sys
import time

from jacnorm.lab.sweep.store import Store

TIMING = {"seconds", "images_per_second"}


def store_in(folder):
    return Store(folder / "results" / "small", folder / "runs")


def found(folder):
    """The results without what depends on the machine's mood."""
    results = {}
    for file in sorted((folder / "results" / "small").glob("*.json")):
        result = json.loads(file.read_text())
        history = {name: values for name, values in result["history"].items() if name not in TIMING}
        results[file.stem] = (result["config"], result["test"], history)
    return results


def command(folder, experiment, *options):
    (folder / "small.toml").write_text(experiment)
    return subprocess.Popen(
        [sys.executable, "-m", "jacnorm", "sweep", "small.toml", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # all that it starts can be told from the rest
    )


def wait_for_progress(store, runs):
    """Until an epoch more is finished than now."""
    before, until = sum(store.epoch(run) for run in runs), time.monotonic() + 180
    while sum(store.epoch(run) for run in runs) <= before:
        assert time.monotonic() < until
        time.sleep(0.02)
