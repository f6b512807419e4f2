"""One run in several processes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from jacnorm.lab.classification import make_penalty
from jacnorm.lab.config import RunConfig
from jacnorm.lab.data import load
from jacnorm.lab.run import Share
from jacnorm.lab.run_files import load_run
from jacnorm.lab.train import train


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_average_of_the_shares_is_the_mean_of_the_batch(count, world):
    batch, shares = torch.randn(count, 2), [Share(rank, world) for rank in range(world)]
    means = [share.weight(batch) * share.taken(batch).mean(0) for share in shares]
    torch.testing.assert_close(torch.stack(means).mean(0), batch.mean(0))
    rows = torch.cat([share.of(batch) for share in shares])
    assert sorted(rows.tolist()) == sorted(batch.tolist())


@pytest.mark.parametrize(
    ("method", "alike"), [("spectral", False), ("frobenius", False), ("spectral-bound", True)]
)
def test_processes_draw_alike_what_they_share_and_nothing_else(method, alike):
    seeds = [make_penalty(RunConfig(method=method), rank).seed for rank in (0, 1)]
    assert (seeds[0] == seeds[1]) == alike


def finished(command):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, start_new_session=True)
    try:
        said = process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # torchrun's own processes as well, since they hold the pipes
        said = process.communicate()
    return process.returncode, *said


@pytest.mark.xdist_group("processes that meet")
def test_torchrun_ends_with_the_weights_of_one_process(tmp_path):
    """The training is stopped and resumed. Its last batch is too small to share."""
    digits = load("digits")
    config = RunConfig(epochs=3, batch_size=359, learning_rate=0.1, weight=0.1, augment=True)
    expected = train(config, digits, tmp_path / "one")
    (tmp_path / "three.toml").write_text(
        "epochs = 3\nbatch_size = 359\nlearning_rate = 0.1\nweight = 0.1\naugment = true\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    options = ["--config", tmp_path / "three.toml", "--out", tmp_path / "two", "--quiet"]
    command = [*torchrun, Path(__file__).with_name("share_checks.py"), *options]
    code, said, complaints = finished(command)
    assert code == 0, complaints
    result = json.loads((tmp_path / "two" / "result.json").read_text())
    printed = [line for line in said.splitlines() if line.startswith("{")]
    assert [json.loads(line) for line in printed] == [result]  # by one process
    for ours, theirs in zip(result["history"], expected["history"], strict=True):
        for name in ("train_loss", "train_penalty", "train_accuracy", "validation_loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4), name
    one, two = (load_run(tmp_path / name, config, digits).state_dict() for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=0, atol=1e-5)
