"""What the pages show is true: their code runs, and the reference names all there is."""

import re
import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jacnorm as jn

DOCS = Path(__file__).parent.parent / "docs"


PAGES = ["index", "measuring", "models", "penalties", "coming-from", "tasks", "j-v-in-training"]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(page):
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert blocks
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    x, y = torch.randn(4, 1, 8, 8), torch.randint(10, (4,))
    names = {"torch": torch, "F": F, "jn": jn, "model": model, "x": x, "y": y, "J": jn.linearize(model, x)}
    for block in blocks:
        exec(block, names)  # a page goes on where its last block has stopped


def test_the_reference_has_every_public_name():
    shown = re.findall(r"^::: jacnorm\.(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(set(jn.__all__) - {"__version__"})


def test_the_versions_are_those_of_constraints_txt():
    rows = runpy.run_path(str(DOCS / "versions.py"))["rows"]()
    assert "| torch |  | 2.9 or later | 2.13.0 | 2.9.0 " in rows[0]
    missing = [row for row in rows if row not in (DOCS / "versions.md").read_text().splitlines()]
    assert not missing, "run `make versions`"


def test_the_experiment_file_can_be_swept(tmp_path):
    from jacnorm.lab.sweep.experiment import read_experiment
    from jacnorm.lab.sweep.run import check_names

    (block,) = re.findall(r"^```toml\n(.*?)^```$", (DOCS / "sweeps.md").read_text(), re.MULTILINE | re.DOTALL)
    file = tmp_path / "my.toml"
    file.write_text(block)
    experiment = read_experiment(file)
    check_names(experiment.runs)
    assert len(experiment.claims) == 1
    labels = [run.label for run in experiment.runs]
    assert {label: labels.count(label) for label in labels} == {
        "none": 3,
        "frobenius": 6,
        "spectral": 6,
        "spectral-warm": 6,
    }
