"""A run that was stopped or killed ends with the same bits, in every task."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from small_tasks import SMALL, Stop, StopsAfter, settings, trained, without_timing

from jacnorm.lab import checkpoint

METHODS = [
    *(("dqn", method) for method in ("none", "spectral-norm", "spectral", "weight-decay")),
    *(("policy", method) for method in ("none", "spectral", "spectral-target", "frobenius", "caps")),
    *(
        ("gan", method)
        for method in ("none", "spectral-norm", "wgan-gp", "r1", "spectral", "spectral-target")
    ),
]


def assert_same_weights(a, b):
    ours, theirs = (checkpoint.load(folder / "weights.safetensors")[0] for folder in (a, b))
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name]), name


@pytest.mark.parametrize(("task", "method"), METHODS)
def test_resuming_ends_with_the_very_same_weights(task, method, tmp_path):
    config = settings(task, method=method, weight=0.1, seed=3)
    numpy_before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()
    whole = trained(config, tmp_path / "whole")
    assert (np.random.get_state()[1] == numpy_before).all()  # neither setting is ours to change
    assert torch.equal(torch.get_rng_state(), torch_before)
    np.random.seed(5)
    torch.manual_seed(5)
    with pytest.raises(Stop):
        trained(config, tmp_path / "parts", progress=StopsAfter(1))
    parts = trained(config, tmp_path / "parts", resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert parts["test"] == whole["test"]
    assert without_timing(parts["history"]) == without_timing(whole["history"])


@pytest.mark.parametrize("task", ["dqn", "policy"])
def test_another_seed_is_another_run(task, tmp_path):
    found = [trained(settings(task, seed=seed, epochs=1), tmp_path / str(seed)) for seed in (0, 1)]
    assert found[0]["history"][0]["sigma"] != found[1]["history"][0]["sigma"]


def test_environments_side_by_side_resume_as_one_does(tmp_path):
    config = settings("dqn", environments=4, seed=3)
    whole = trained(config, tmp_path / "whole")
    with pytest.raises(Stop):
        trained(config, tmp_path / "parts", progress=StopsAfter(2))
    parts = trained(config, tmp_path / "parts", resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert parts["test"] == whole["test"]
    assert [one["steps"] for one in whole["history"]] == [120, 240, 360]


@pytest.mark.parametrize("task", ["dqn", "policy", "gan"])
def test_killed_and_gone_on_with(task, tmp_path):
    config = settings(task, epochs=8)
    trained(config, tmp_path / "whole")
    typed = [f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL[task], "epochs": 8}.items()]
    command = [sys.executable, "-m", "jacnorm", "train", "--task", task, *typed, "--out", "parts", "--quiet"]
    options = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    process = subprocess.Popen([*command, "--threads", str(torch.get_num_threads())], **options)
    metrics, until = tmp_path / "parts" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 2):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(metrics.read_text().splitlines())
    assert 2 <= kept < 8
    trained(config, tmp_path / "parts", resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")
    assert len(json.loads((tmp_path / "parts" / "result.json").read_text())["history"]) == 8
