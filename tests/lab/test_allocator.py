import subprocess
import sys

import pytest

COUNT = """
import resource, sys, torch
from jacnorm.lab.allocator import keep_memory
if sys.argv[1] == "keep":
    keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        step = [torch.ones(1_000_000) for _ in range(20)]  # activations, kept until the step is over
        del step
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def faults(how):
    found = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True)
    return int(found.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_memory_stays_with_the_process():
    assert faults("keep") < 50 < 10_000 < faults("leave")
