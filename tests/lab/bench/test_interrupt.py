"""Ctrl-C while `jacnorm bench` measures."""

import signal
import subprocess
import sys

# The timings before it take a minute.
BENCH = """
import sys
from jacnorm.lab.bench import suites
from jacnorm.lab.cli import main

measure = suites.memory.growth

def growth(*given):
    print("measuring", flush=True)
    return measure(*given)

suites.costs = lambda *given: {}
suites.parts.shares = lambda *given: {}
suites.memory.growth = growth
sys.exit(main(["bench", "methods", "--net", "vgg16", "--out", sys.argv[1]]))
"""


def test_no_traceback(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", BENCH, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "measuring\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err + out
    assert err.strip().splitlines()[-1] == "jacnorm: stopped"
