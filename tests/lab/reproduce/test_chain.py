"""The whole chain on digits: sweep, reproduce, report."""

import json
import shutil
from functools import partial
from typing import ClassVar

import pytest
from safetensors.torch import load_file

from jacnorm.lab.cli import main
from jacnorm.lab.sweep.pool import carry_out, order

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
    """A pool that trains in this process. New processes would need seconds to import torch."""

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
    (folder / "paper" / "quick").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / "paper" / "quick" / f"{name}.toml").write_text(text)
    return folder


def results_in(home):
    return {file: file.read_bytes() for file in sorted((home / "paper").rglob("*.jsonl"))}


def without_timing(content):
    results = [json.loads(line) for line in content.splitlines()]
    for result in results:
        for name in ("seconds", "images_per_second"):
            result["history"].pop(name)
    return results


@pytest.fixture
def reproduce(home, monkeypatch, capsys):
    monkeypatch.chdir(home)
    monkeypatch.setattr("jacnorm.lab.commands.reproduce.LocalPool", InThisProcess)

    def call(*options, item="all"):
        assert main(["reproduce", item, "--data", "digits", *options]) == 0
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
    files = results_in(home)
    assert [len(content.splitlines()) for content in files.values()] == [8 * 4, 8, 6, 15]
    assert len(max(b"".join(files.values()).splitlines(), key=len)) < 10_000

    # Again: nothing is trained or measured, the same is told.
    assert reproduce() == first
    # Someone who has the results alone, without weights, is told the same.
    shutil.move(home / "runs", home / "elsewhere")
    assert reproduce() == first
    assert len(InThisProcess.trained) == 15
    assert results_in(home) == files
    shutil.move(home / "elsewhere", home / "runs")

    # A result that was cut short is made again, from the checkpoint, and is what it was.
    table = home / "paper" / "quick" / "table1-digits.jsonl"
    table.write_bytes(files[table][:-20])
    assert reproduce() == first
    assert without_timing(table.read_bytes()) == without_timing(files[table])

    # The networks that are kept beside their table are enough to measure a figure again.
    keep = partial(reproduce, "--reuse-only", "--keep", item="table1")
    assert "table1-digits.safetensors: 8 networks" in keep()
    kept = table.with_suffix(".safetensors").read_bytes()
    keep()
    assert table.with_suffix(".safetensors").read_bytes() == kept
    figure = home / "paper" / "quick" / "figure4-digits.jsonl"
    figure.unlink()
    assert reproduce("--runs", "others") == first
    assert figure.read_bytes() == files[figure]

    # As folders, for other commands, from the runs or from what is kept.
    for source in ("runs", "nothing"):
        folder = home / f"from-{source}"
        options = ("--reuse-only", "--networks", str(folder), "--runs", source)
        assert f"{folder}: 8 networks of table1-digits" in reproduce(*options, item="table1")
        assert len(list(folder.glob("*/config.json"))) == 8
    for weights in (home / "from-runs").glob("*/weights.safetensors"):
        other = home / "from-nothing" / weights.parent.name / weights.name
        assert load_file(other).keys() == load_file(weights).keys()
    assert main(["measure", str(other.parent), "--images", "5"]) == 0
    capsys.readouterr()
    table.with_suffix(".safetensors").unlink()
    nothing_there = ["--reuse-only", "--networks", "elsewhere", "--runs", "nothing"]
    assert main(["reproduce", "table1", "--data", "digits", *nothing_there]) == 2
    assert "the weights of 8 of 8 networks are not in nothing" in capsys.readouterr().err
    (home / "file").touch()
    for folder, why in (("runs", "is also the runs' folder"), ("file", "cannot be made")):
        assert main(["reproduce", "all", "--data", "digits", "--reuse-only", "--networks", folder]) == 2
        assert f"--networks {folder}" in (told := capsys.readouterr().err)
        assert why in told

    # A figure of an own table: its runs are those of table 1, so only the figure is made.
    mine = home / "paper" / "quick" / "mine.toml"
    mine.write_text(FILES["table1-digits"].replace("Table 1, digits", "Mine"))
    figure = FILES["figure4-digits"].replace("Figure 4, digits", "Distances").replace("table1-digits", "mine")
    (home / "paper" / "quick" / "distances.toml").write_text(figure)
    before = list(InThisProcess.trained)
    assert main(["reproduce", "paper/quick/distances.toml"]) == 0
    assert "Distances\n=========" in capsys.readouterr().out
    assert len((home / "paper" / "quick" / "distances.jsonl").read_text().splitlines()) == 8
    assert InThisProcess.trained == before

    assert main(["report", "--markdown", "docs/reproduction.md"]) == 0
    assert "report.html: 6 tables and figures" in capsys.readouterr().out
    page = (home / "report.html").read_text()
    assert page.count("<svg") == 2 * 1 + 4 + 2 * 1 + 2
    numbers = next(line for line in first.splitlines() if line.startswith("spectral-bound")).split("  ")
    for cell in filter(None, numbers):  # what was printed is on the page and in the Markdown
        assert cell.strip() in page
        assert cell.strip() in (home / "docs" / "reproduction.md").read_text()
    assert len(list((home / "docs" / "reproduction").glob("*.svg"))) == 10
