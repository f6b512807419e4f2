"""Every example runs, ends in an assertion of its own, and draws its picture if it has one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
EXAMPLES = [path for path in EXAMPLES if path.stem != "drawings"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example, tmp_path):
    text = example.read_text()
    assert "assert " in text
    picture = [tmp_path / "picture.png"] if "[PICTURE]" in text else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, example, *picture],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_size > 10_000 for path in picture)
