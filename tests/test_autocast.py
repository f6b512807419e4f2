"""Mixed and half precision, in a process of their own.

On some CPUs oneDNN fails on bfloat16 with its newest instructions, and leaves float32 broken behind it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["autocast_checks", "half_checks"])
def test_in_a_process_of_its_own(name):
    checks = Path(__file__).with_name(f"{name}.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", checks],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
