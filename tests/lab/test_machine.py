import os
import subprocess
import sys

import pytest

# Blocks straight from malloc: tensors bring small objects along, and one that comes to lie above them all
# keeps their memory from going back, with keep_memory() or without.
COUNT = """
import ctypes, resource
from jacnorm.lab.cli import keep_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
BYTES = 4_000_000
step = (ctypes.c_void_p * 20)()  # activations, kept until the step is over
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        for i in range(20):
            step[i] = libc.malloc(BYTES)
            ctypes.memset(step[i], 1, BYTES)
        for block in step:
            libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
keep_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
def test_freed_memory_stays_with_the_process():
    untuned = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    found = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, env=untuned
    )
    left, kept = map(int, found.stdout.split())
    assert kept < 50 < 10_000 < left
