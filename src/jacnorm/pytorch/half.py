"""Whether products in half precision work on this machine and are faster."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import torch
import torch.distributed as dist

from ..errors import warn
from .precision import HALF
from .tracing import while_tracing

SECONDS = 120
# The trial runs in a separate process, because a failure of half precision may break other kernels.
TRIAL = """
import json, sys, time, torch, torch.nn.functional as F
kind, device = getattr(torch, sys.argv[1]), sys.argv[2]
torch.set_num_threads(int(sys.argv[3]))
def products(x, w, queries, kernel, images):
    c, scores = F.linear(x, w), queries @ queries.mT
    found = [c, c @ w, c.t() @ x, scores, scores @ queries]
    for is_transposed in (False, True):
        options = [1, 1], [1, 1], [1, 1], is_transposed, [0, 0], 1
        y = torch.ops.aten.convolution(images, kernel, None, *options)
        back = torch.ops.aten.convolution_backward(y, images, kernel, None, *options, [True, True, False])
        found += [y, *back[:2]]
    return found
def seconds(values):
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        found = [float(t.sum()) for t in products(*values)]
        best = min(best, time.perf_counter() - begin)
    return best
torch.manual_seed(0)
shapes = (256, 512), (512, 512), (32, 64, 64), (64, 64, 3, 3), (16, 64, 16, 16)
single = [torch.randn(s, device=device) for s in shapes]
half = [t.to(kind) for t in single]
wrong = max(float((a - b.float()).norm() / a.norm()) for a, b in zip(products(*single), products(*half)))
print(json.dumps({"wrong": wrong, "speed": seconds(single) / seconds(half)}))
"""


@while_tracing
def half_pays(dtype: torch.dtype, device: torch.device) -> bool:
    """Tried once; where it does not pay, a warning says why."""
    why = why_not(dtype, device)
    if why is not None:
        _warn(dtype, why)
    return why is None


@cache
def _warn(dtype: torch.dtype, why: str) -> None:
    warn(f"precision={dtype} {why}: products of J stay in float32.")


def why_not(dtype: torch.dtype, device: torch.device) -> str | None:
    """What keeps this machine from gaining by it; None if it gains.

    Processes that train together use the same answer: the first that asks tries, and the others wait for it.
    """
    return _tried(dtype, device, torch.get_num_threads(), dist.is_available() and dist.is_initialized())


@cache
def _tried(dtype: torch.dtype, device: torch.device, threads: int, together: bool) -> str | None:
    name = str(dtype).removeprefix("torch.")

    def find() -> str | None:
        return _why_not(name, str(device), threads)

    return _found_by_the_first(f"jacnorm: {name} on {device.type}", find) if together else find()


def _found_by_the_first(key: str, find: Callable[[], str | None]) -> str | None:
    """The result of the first process that asks. This is no collective call, because it is possible that only
    one process asks, for example one that measures."""
    store = dist.distributed_c10d._get_default_store()
    if store.add(f"{key}, asked for", 1) == 1:
        store.set(key, find() or "")
    return store.get(key).decode() or None


def _why_not(name: str, device: str, threads: int) -> str | None:
    try:
        ran = subprocess.run(
            [sys.executable, "-c", TRIAL, name, device, str(threads)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
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


class Choice:
    """Whether a training run uses half precision. It is saved, so that a resumed run does the same."""

    DTYPES = sorted(HALF, key=str)

    def __init__(self) -> None:
        self._pays: dict[torch.dtype, bool] = {}

    def pays(self, dtype: torch.dtype, device: torch.device) -> bool:
        if dtype not in self._pays:
            self._pays[dtype] = half_pays(dtype, device)
        return self._pays[dtype]

    def state(self) -> list[int]:
        """One number per dtype: 1 for yes, −1 for no, 0 if it was not tried."""
        return [{True: 1, False: -1, None: 0}[self._pays.get(dtype)] for dtype in self.DTYPES]

    def load(self, state: list[int]) -> None:
        known = zip(self.DTYPES, state, strict=False)  # older checkpoints do not have it
        self._pays = {dtype: value > 0 for dtype, value in known if value != 0}


@while_tracing
def pays_for(choice: Choice | None, dtype: torch.dtype, device: torch.device) -> bool:
    return half_pays(dtype, device) if choice is None else choice.pays(dtype, device)
