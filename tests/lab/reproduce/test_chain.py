"""The whole chain on digits: sweep, reproduce, report."""

import json
import shutil
from typing import ClassVar

import pytest

from jacnorm.lab.cli import main
from jacnorm.lab.sweep.worker import carry_out, order

FILES = {
    "table1-digits": """
title = "Table 1, digits"
[base]
epochs = 2
batch_size = 64
learning_rate = 0.1
[grid]
method = ["none", "spectral-bound", "spectral"]
warm_start = [false, true]
weight = [0.01, 0.1]
seed = [0, 1]
[screening]
epochs = 1
[paper]
none = [95.0, 0.5]
spectral-bound = [95.5, 0.5]
spectral = [96.0, 0.5]
[[claims]]
text = "Spectral is more accurate than none"
more = "spectral"
less = "none"
""",
    "figure3-digits": """
figure = 3
title = "Figure 3, digits"
networks = "table1-digits"
[measure]
images = 30
variances = [0.0, 0.2]
steps = [0, 3]
queries = [0, 5]
[[claims]]
text = "Spectral loses less to PGD"
quantity = "pgd"
more = "spectral"
less = "none"
""",
    "figure4-digits": """
figure = 4
title = "Figure 4, digits"
networks = "table1-digits"
[measure]
images = 12
directions = 5
""",
    "figure5-digits": """
figure = 5
title = "Figure 5, digits"
networks = "table1-digits"
[measure]
images = 20
batch_sizes = [8, 16]
repeats = 2
rounds = [1, 3]
""",
}


class InThisProcess:
    """An engine that saves the seconds which each new process needs to import torch."""

    trained: ClassVar[list[str]] = []

    def __init__(self, store, data_root, device, workers):
        self.store, self.data_root, self.device = store, data_root, device

    def run_all(self, configs, watch):
        for config in configs:
            if not self.store.is_done(config):
                self.trained.append(config.id)
                assert carry_out(order(config, self.store, self.data_root, self.device, 1)) == 0


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    (folder / "experiments").mkdir()
    for name, text in FILES.items():
        (folder / "experiments" / f"{name}.toml").write_text(text)
    return folder


@pytest.fixture
def reproduce(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    monkeypatch.setattr("jacnorm.lab.commands.reproduce.LocalEngine", InThisProcess)

    def call(*options):
        assert main(["reproduce", "all", "--data", "digits", *options]) == 0
        return capsys.readouterr().out

    return call


def test_sweep_reproduce_and_report(home, reproduce, capsys):
    first = reproduce()
    assert len(InThisProcess.trained) == len(set(InThisProcess.trained)) == 7 + 8  # screening, then two seeds
    for title in ("Table 1, digits", "Figure 3, digits", "Figure 4, digits", "Figure 5, digits"):
        assert f"{title}\n{'=' * len(title)}\n" in first
    assert first.count("Two-stage screening: 7 settings, 1 seed, 1 epoch; then the best of each method") == 1
    assert first.count("Protocol “paper”: settings are chosen by the loss on the test split") == 1
    assert (
        first.count("About the networks that were chosen in “Table 1, digits”: two-stage screening by the")
        == 3
    )
    assert "missing" not in first.lower()
    assert "warning" not in first
    files = {file.relative_to(home): file.read_bytes() for file in (home / "results").rglob("*.json")}
    assert len(files) == 15 + 8 + 8 + 6
    assert max(map(len, files.values())) < 10_000

    # Again: nothing is trained or measured, the same is told.
    assert reproduce() == first
    # Someone who has results/ alone, without weights, is told the same.
    shutil.move(home / "runs", home / "elsewhere")
    assert reproduce() == first
    assert reproduce("--reuse-only") == first
    assert len(InThisProcess.trained) == 15
    assert files == {file.relative_to(home): file.read_bytes() for file in (home / "results").rglob("*.json")}
    shutil.move(home / "elsewhere", home / "runs")

    # A file that was cut short is made again, from the checkpoint, and is what it was.
    cut = next(
        file for file in files if "-spectral-bound-" in file.name and file.parent.name == "table1-digits"
    )
    (home / cut).write_bytes(files[cut][:-20])
    assert reproduce() == first
    assert json.loads((home / cut).read_text()) == json.loads(files[cut])

    # The chosen networks alone are enough to measure a figure again. What a crash has left among them is
    # not described.
    (home / "networks" / "digits-cut-off").mkdir(parents=True)
    (home / "networks" / "digits-cut-off" / "weights.safetensors").touch()
    assert "networks: 8 networks of table1-digits" in reproduce("--reuse-only", "--networks", "networks")
    told = (home / "networks" / "README.md").read_text()
    for folder in (home / "networks").glob("digits-*"):
        assert (f"| {folder.name} | " in told) == (folder.name != "digits-cut-off")
    assert " | spectral-warm | " in told
    shutil.rmtree(home / "results" / "figure4-digits")
    assert reproduce("--runs", "networks") == first
    assert files == {file.relative_to(home): file.read_bytes() for file in (home / "results").rglob("*.json")}
    nothing_there = ["--reuse-only", "--networks", "elsewhere", "--runs", "nothing"]
    assert main(["reproduce", "table1", "--data", "digits", *nothing_there]) == 2
    assert "the weights of 8 of 8 networks are not in nothing" in capsys.readouterr().err
    (home / "file").touch()
    (home / "README.md").write_text("My own project\n")
    assert main(["reproduce", "table1", "--data", "digits", "--reuse-only", "--networks", "."]) == 2
    assert "README.md is about something else" in capsys.readouterr().err
    assert (home / "README.md").read_text() == "My own project\n"
    for folder, why in (("runs", "is where the runs are, too"), ("file", "cannot be made")):
        assert main(["reproduce", "all", "--data", "digits", "--reuse-only", "--networks", folder]) == 2
        assert f"--networks {folder}" in (told := capsys.readouterr().err)
        assert why in told

    # A figure of an own table: its runs are those of table 1, so only the figure is made.
    (home / "mine.toml").write_text(FILES["table1-digits"].replace("Table 1, digits", "Mine"))
    figure = FILES["figure4-digits"].replace("Figure 4, digits", "Distances").replace("table1-digits", "mine")
    (home / "distances.toml").write_text(figure)
    before = list(InThisProcess.trained)
    assert main(["reproduce", "distances.toml"]) == 0
    assert "Distances\n=========" in capsys.readouterr().out
    assert len(list((home / "results" / "distances").glob("*.json"))) == 8
    assert InThisProcess.trained == before

    assert main(["report", "--markdown", "docs/reproduction.md"]) == 0
    assert "report.html: 4 tables and figures from results" in capsys.readouterr().out
    page = (home / "report.html").read_text()
    assert page.count("<svg") == 1 + 4 + 1 + 2
    numbers = next(line for line in first.splitlines() if line.startswith("spectral-bound")).split("  ")
    for cell in filter(None, numbers):  # what was printed is on the page and in the Markdown
        assert cell.strip() in page
        assert cell.strip() in (home / "docs" / "reproduction.md").read_text()
    assert len(list((home / "docs" / "reproduction").glob("*.svg"))) == 8
