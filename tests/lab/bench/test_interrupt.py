"""Ctrl-C while `jacnorm bench` measures memory in a process of its own, which has forked another."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# The timings before it take a minute, and have no process of their own.
BENCH = """
import sys
from jacnorm.lab.bench import suites
from jacnorm.lab.cli import main
suites.costs = lambda *given: {}
suites.parts.shares = lambda *given: {}
sys.exit(main(["bench", "methods", "--net", "vgg16", "--out", sys.argv[1]]))
"""


def children(pid):
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def family(pid):
    """Its children and theirs."""
    return [one for child in children(pid) for one in (child, *children(child))]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def waits_for(holds, seconds=120):
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to bench alone", "to all, as Ctrl-C does"])
def test_no_traceback_and_no_process_is_left(send, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", BENCH, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert waits_for(lambda: any(children(child) for child in children(process.pid))), (
            "nothing was measured"
        )
        others = family(process.pid)
        send(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err + out
    assert err.strip().splitlines()[-1] == "jacnorm: stopped"
    assert waits_for(lambda: not any(map(is_running, others)), 20), "a process is left"
