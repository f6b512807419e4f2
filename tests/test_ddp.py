"""DistributedDataParallel: two processes on the CPU."""

import subprocess
import sys
from pathlib import Path


def test_two_processes_have_the_gradients_of_one(tmp_path):
    checks = Path(__file__).with_name("ddp_checks.py")
    processes = [
        subprocess.Popen(
            [sys.executable, checks, str(rank), str(tmp_path / "meeting")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=200)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
