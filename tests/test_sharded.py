"""Models that fully_shard spreads over processes, on the CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOM = Path(__file__).parent


def run_together(script, group, count, meeting, seconds):
    """All processes must end well, each within so many seconds."""
    processes = [
        subprocess.Popen(
            [sys.executable, ROOM / script, group, str(rank), str(count), str(meeting)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * count, "\n".join(said)


def test_two_processes_have_the_gradients_of_one(tmp_path):
    run_together("sharded_checks.py", "two", 2, tmp_path / "meeting", 400)


def test_four_processes_have_the_gradients_of_one(tmp_path):
    run_together("sharded_checks.py", "four", 4, tmp_path / "meeting", 400)


def test_processes_decide_and_fail_together(tmp_path):
    run_together("sharded_failures.py", "all", 2, tmp_path / "meeting", 400)


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_every_net_with_every_penalty(tmp_path, count):
    run_together("sharded_checks.py", "all", count, tmp_path / "meeting", 1800)
