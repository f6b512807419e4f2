"""The page of the paper's future work, from hand-made results; the pages of the paper are left alone."""

import shutil
from pathlib import Path

import pytest

from jacnorm.lab.cli import main
from jacnorm.lab.reproduce.catalog import foreword
from jacnorm.lab.results import append_result
from jacnorm.lab.sweep.experiment import read_experiment

PAPER = Path(__file__).parents[3] / "paper"
FILE = """# Does it help?
# Written before the runs.
#
# A reason,
# in two lines.
# Expected: that it does.
# Against it: that it does not.
title = "Small"
[base]
task = "policy"
epochs = 1
[grid]
method = ["none", "spectral"]
weight = [0.01, 0.1]
seed = [0, 1, 2, 3, 4]
[[claims]]
text = "Actions fluctuate less"
quantity = "fluctuation"
more = "none"
less = "spectral 0.1"
ours = true
"""


@pytest.fixture
def folder(tmp_path):
    """With a table of the paper's and an experiment of the future."""
    shutil.copytree(PAPER / "table1-kmnist", tmp_path / "table1-kmnist")
    (tmp_path / "future").mkdir()
    (tmp_path / "future" / "small.toml").write_text(FILE)
    (tmp_path / "future" / "results.jsonl").touch()
    return tmp_path


def pages(folder):
    command = ["report", "--experiments", str(folder), "--out", str(folder / "x.html")]
    assert main([*command, "--markdown", str(folder)]) == 0
    return {str(page.relative_to(folder)): page.read_text() for page in folder.rglob("*.md")}


def publish(file):
    """10 more of the return by 0.1, half of the fluctuation by both."""
    experiment = read_experiment(file)
    for run in experiment.runs:
        gain = 10.0 if run.label == "spectral 0.1" else 0.0
        smooth = 1 if run.label == "none" else 0.5
        test = dict.fromkeys(run.quantities, 1.0)
        test |= {"return": -100.0 + 0.1 * run.seed + gain, "fluctuation": smooth * (2 + 0.1 * run.seed)}
        history = {"return": [1.0], "seconds": [7.0]}
        append_result(experiment.results, {"id": run.id, "config": {}, "test": test, "history": history})


def test_before_the_runs_it_says_what_is_expected(folder):
    text = pages(folder)["future/README.md"]
    assert "* **[Small](#small)**. Not run yet." in text
    assert (
        "**Does it help?**\n\nA reason, in two lines.\n\n**Expected:** that it does.\n\n**Against it:**"
        in text
    )
    assert "* **not run yet**: Actions fluctuate less" in text
    assert "`jacnorm sweep paper/future/small.toml --workers 2`" in text
    assert not (folder / "future" / "curves.svg").exists()


def test_after_the_runs_it_tells_in_short_and_in_tables(folder):
    publish(folder / "future" / "small.toml")
    text = pages(folder)["future/README.md"]
    assert "Return at the end: “none” has −99.8 [−99.9, −99.6]; above it: spectral 0.1 (+10.0 [+9." in text
    assert "; cannot be told from it: spectral 0.01. Fluctuation of actions, 10⁻³: “none” has 2.20 [" in text
    assert "; below it: spectral 0.01 (−1.10 [" in text
    assert "15 networks trained in full, 2 minutes of training in all. 1 claim: 1 holds." in text
    assert "| spectral 0.1 − none | +10.0 [" in text
    assert "| method | n | return, 0.05 s.d. of noise |" in text
    assert "* **holds**: Actions fluctuate less: none − spectral 0.1 = +1.10 [" in text
    assert "![Interquartile mean over" in text
    assert "<svg" in (folder / "future" / "curves.svg").read_text()


def test_the_papers_own_pages_stay_as_they_are(folder):
    before = pages(folder)
    publish(folder / "future" / "small.toml")
    after = pages(folder)
    assert after.pop("future/README.md") != before.pop("future/README.md")
    assert after == before
    assert "* [Future work](future/README.md)" in after["README.md"]


@pytest.mark.parametrize("file", sorted((PAPER / "future").glob("*.toml")), ids=lambda file: file.stem)
def test_each_of_ours_asks_and_says_what_is_expected(file):
    question, *rest = foreword(file)
    assert question.endswith("?")
    assert [text.partition(":")[0] for text in rest if text.startswith("**")] == [
        "**Expected",
        "**Against it",
    ]
