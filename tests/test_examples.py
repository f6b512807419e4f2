"""Every example runs, ends in an assertion of its own, and draws its picture if it has one."""

import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
EXAMPLES = [path for path in EXAMPLES if path.stem != "drawings"]
SHORTER = {  # with the same assertions in the end
    "batch_norm": {"EPOCHS": 8},  # of 20
    "smooth_policy": {"STEPS": 8_000, "WEIGHT": 0.3},  # of 50,000, with a tenth of that weight
    "cards": {"SAMPLES": 60, "ATTACKED": 2, "STEPS": 250},  # of 1000, 200 and 600
}


@pytest.mark.parametrize("name", SHORTER)
def test_example_in_short(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = EXAMPLES[0].parent / f"{name}.py"
    example = {"__name__": name, "__file__": str(path)}
    exec(path.read_text(), example)
    example.update(SHORTER[name])
    example["main"]()


@pytest.mark.parametrize(
    "example",
    [pytest.param(e, id=e.stem, marks=[pytest.mark.long] * (e.stem in SHORTER)) for e in EXAMPLES],
)
def test_example(example, tmp_path, monkeypatch):
    text = example.read_text()
    assert "assert " in text
    picture = [tmp_path / "picture.png"] if "[PICTURE]" in text else []
    monkeypatch.syspath_prepend(str(example.parent))
    monkeypatch.setattr(sys, "argv", [str(example), *map(str, picture)])
    monkeypatch.chdir(tmp_path)
    with mpl.rc_context():
        runpy.run_path(str(example), run_name="__main__")
    assert all(path.stat().st_size > 10_000 for path in picture)
