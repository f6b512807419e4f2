"""Whether products in half precision work on this machine, and are faster."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from functools import cache

import torch

from .tracing import while_tracing

SECONDS = 120
# In a process of its own: where half precision fails, it may leave other kernels broken.
TRIAL = """
import json, sys, time, torch, torch.nn.functional as F
kind, device = getattr(torch, sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
def products(x, w, kernel, images):
    c = F.linear(x, w)
    y = F.conv2d(images, kernel, padding=1)
    like = torch.ops.aten.convolution_backward(
        y, images, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    return [c, c @ w, c.t() @ x, y, *like[:2]]
def seconds(values):
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        found = [float(t.sum()) for t in products(*values)]
        best = min(best, time.perf_counter() - begin)
    return best
torch.manual_seed(0)
shapes = (256, 512), (512, 512), (64, 64, 3, 3), (16, 64, 16, 16)
single = [torch.randn(s, device=device) for s in shapes]
half = [t.to(kind) for t in single]
wrong = max(float((a - b.float()).norm() / a.norm()) for a, b in zip(products(*single), products(*half)))
print(json.dumps({"wrong": wrong, "speed": seconds(single) / seconds(half)}))
"""


@while_tracing
@cache
def half_pays(dtype: torch.dtype, device: str) -> bool:
    """Tried once; where it does not pay, a warning says why."""
    why = why_not(dtype, device)
    if why is not None:
        warnings.warn(f"precision={dtype} {why}: products of J stay in float32.", stacklevel=4)
    return why is None


@cache
def why_not(dtype: torch.dtype, device: str) -> str | None:
    """What keeps this machine from gaining by it; None if it gains."""
    name = str(dtype).removeprefix("torch.")
    try:
        ran = subprocess.run(
            [sys.executable, "-c", TRIAL, name, device], capture_output=True, text=True, timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"could not be tried on this machine ({type(error).__name__})"
    if ran.returncode != 0:
        lines = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
        return f"does not work on this machine ({lines[-1]})"
    found = json.loads(ran.stdout.splitlines()[-1])
    if not found["wrong"] < 0.05:
        return f"gives wrong products on this machine (off by {found['wrong']:.0%})"
    if found["speed"] < 1.1:
        return f"is no faster on this machine ({found['speed']:.2f} times the speed of float32)"
    return None
