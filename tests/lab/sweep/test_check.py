"""Messages before the training starts."""

import re
import sys
from pathlib import Path

import pytest
from made_results import publish

from jacnorm.lab.cli import main
from jacnorm.lab.sweep.pool import carry_out, order

SWEEP = """
[base]
net = "mynets:small"
method = "none"
epochs = 1
batch_size = 512
[grid]
seed = [0]
"""
NET = "from torch import nn\ndef small():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.{})\n"


class InThisProcess:
    """A pool that trains in this process. New processes would need seconds to import torch."""

    def __init__(self, store, data_root, device, workers):
        self.store, self.data_root, self.device = store, data_root, device

    def run_all(self, configs, watch):
        for config in configs:
            if not self.store.is_done(config):
                assert carry_out(order(config, self.store, self.data_root, self.device, 1)) == 0


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Runs a command in an own folder. Returns its stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # the file changes within a second
    monkeypatch.setattr("jacnorm.lab.commands.sweep.LocalPool", InThisProcess)
    Path("my.toml").write_text(SWEEP)

    def call(*args, code=0):
        sys.modules.pop("mynets", None)  # for a user each command is a new process
        assert main(list(args)) == code
        return capsys.readouterr()

    yield call
    sys.modules.pop("mynets", None)


def test_a_net_whose_code_has_changed(here):
    Path("mynets.py").write_text(NET.format("ReLU()"))
    assert "1 of 1 runs done" in here("sweep", "my.toml").out
    assert here("sweep", "my.toml", "--status").err == ""
    (run,) = map(str, Path("runs").iterdir())

    Path("mynets.py").write_text(NET.format("Tanh()"))  # with the same parameters
    told = here("sweep", "my.toml", "--status")
    assert "1 of 1 runs done" in told.out
    assert "warning: mynets:small: 1 run in my.jsonl and runs had another net of this name" in told.err
    assert "give the new net another name" in here("sweep", "my.toml", code=2).err
    error = here("evaluate", run, code=2).err
    assert re.fullmatch(r"jacnorm: error: runs/\S+ was trained with another mynets:small: .*\n", error)

    # An unfinished run is of another net as well.
    Path("my.jsonl").unlink()
    assert "1 run in my.jsonl and runs had another" in here("sweep", "my.toml", code=2).err
    error = here("train", "--resume", "--out", run, code=2).err
    assert "was trained with another mynets:small" in error

    Path("mynets.py").write_text(NET.format("ReLU()"))
    assert "1 of 1 runs done" in here("sweep", "my.toml").out


def test_weights_from_before_fingerprints(here):
    import torch
    from safetensors.torch import save_file

    from jacnorm.lab import checkpoint

    Path("mynets.py").write_text(NET.format("ReLU()"))
    here("train", "--net", "mynets:small", "--epochs", "1", "--out", "run", "--quiet")
    tensors, rest = checkpoint.load(Path("run/weights.safetensors"))
    before = {f"body.{name}": tensor for name, tensor in tensors.items()}
    before |= {name: torch.tensor(rest[name]).view(1, 1, 1) for name in ("mean", "std")}
    save_file(before, "run/weights.safetensors")  # with the names of earlier versions, and without newer keys
    here("evaluate", "run")
    Path("mynets.py").write_text(NET.format("Linear(10, 10)"))
    assert "was trained with another mynets:small" in here("evaluate", "run", code=2).err


def test_ours_have_no_fingerprint(here):
    """Results of earlier versions stay valid."""
    told = here("train", "--epochs", "1", "--batch-size", "512", "--quiet", "--json").out
    assert '"fingerprint"' not in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--results", "/proc/nope"], "/proc/nope: cannot be written to"),
        (["--runs", "/proc/nope"], "/proc/nope: cannot be written to"),
        (["--runs", "my.toml"], "my.toml: cannot be written to"),
        (["--results", "my.toml"], "my.toml: cannot be written to"),
        (["--runs", "my.toml", "--retry"], "my.toml: cannot be written to"),
        (["--results", "my.toml", "--status"], "my.toml/my.jsonl: cannot be read"),
        (["--runs", "my.toml", "--status"], "my.toml: cannot be read"),
    ],
)
def test_folders(options, message, here, monkeypatch):
    monkeypatch.setattr(InThisProcess, "run_all", None)
    error = here("sweep", "my.toml", *options, code=2).err
    assert re.fullmatch(f"jacnorm: error: {message}.*\n", error)


def test_a_report_makes_no_folder(here):
    assert "there is no folder nope" in here("report", "--out", "nope/x.html", code=2).err
    assert not Path("nope").exists()


@pytest.mark.parametrize("options", [[], ["--status"]])
@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("data = 'digit'", "there is no data set 'digit': did you mean 'digits'"),
        ("net = 'lenett'", "there is no net 'lenett': did you mean 'lenet'"),
    ],
)
def test_names(base, message, options, here):
    Path("my.toml").write_text(f"[base]\n{base}")
    assert message in here("sweep", "my.toml", *options, code=2).err


def test_a_net_that_cannot_be_had(here, tmp_path):
    missing = f"No module named 'mynets'; it is looked for in the current folder ({tmp_path})"
    assert missing in here("sweep", "my.toml", code=2).err
    assert missing in here("sweep", "my.toml", "--status").err  # a warning
    Path("my.toml").write_text("[base]\nnet = 'lenet'")
    assert "net = 'lenet': LeNet needs images of 12×12" in here("sweep", "my.toml", code=2).err


def published(self, configs, watch):
    for config in configs:
        publish(self.store.results, config, 90.0)


def test_a_second_stage_is_told(here, monkeypatch):
    grid = "method = ['none', 'spectral', 'weight-decay']\nweight = [0.1, 1.0]\nseed = [3, 4]"
    base = "epochs = 2\nbatch_size = 512"
    Path("my.toml").write_text(f"[base]\n{base}\n[grid]\n{grid}\n[screening]\nepochs = 1")
    follows = "a second stage follows: the best of each method in full, 6 runs of 2 epochs"
    assert follows in here("sweep", "my.toml", "--status").out
    monkeypatch.setattr(InThisProcess, "run_all", published)
    told = here("sweep", "my.toml")
    assert f"my, stage 1 of 2; {follows}\nmy, screening: 5 runs\n" in told.err
    assert "11 of 11 runs done" in told.out
    again = here("sweep", "my.toml", "--status")
    assert "11 of 11 runs done" in again.out
    assert "follows" not in again.out
    Path("my.jsonl").write_text("{\n")
    assert "cut short or not JSON" in here("sweep", "my.toml", "--status").err
