"""Every notebook runs from the first cell to the last, which ends in assertions. What it keeps is small."""

import runpy
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = [pytest.param(file, id=file.stem) for file in sorted(FOLDER.glob("*.ipynb"))]


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_it_runs(file):
    runpy.run_path(str(FOLDER / "run.py"))["executed"](file)  # a cell that raises raises here


@pytest.mark.parametrize("file", NOTEBOOKS)
def test_it_ends_in_assertions_and_keeps_small_outputs(file):
    cells = code(nbformat.read(file, as_version=4))
    assert cells[-1].source.splitlines()[-1].startswith(("assert ", "torch.testing.assert_close"))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))  # `make notebooks`
    assert file.stat().st_size < 100_000
