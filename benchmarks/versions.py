"""Is this version dearer than an earlier one? Costs of a step with each, in turns, on this machine.

    python benchmarks/versions.py COMMIT [NET BATCH ...]

The networks are those of `jacnorm train`, by default "lenet 8 lenet 32 lenet 128 resnet18 8 vgg16 16 mlp 32".
Costs are in plain steps of the same process, with one thread.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

import jacnorm as jn
from jacnorm.lab.nets import MLP, VGG16, LeNet, ResNet18

HERE = Path(__file__).resolve()
NETS = {
    "lenet": (lambda: LeNet(classes=10), (1, 28, 28)),
    "mlp": (lambda: MLP((784, 200, 200, 10)), (784,)),
    "resnet18": (lambda: ResNet18(classes=10), (3, 32, 32)),
    "vgg16": (lambda: VGG16(classes=10), (3, 32, 32)),
}
USUAL = "lenet 8 lenet 32 lenet 128 resnet18 8 vgg16 16 mlp 32"
TURNS, ROUNDS, SMALL, BLOCK = 2, 18, 0.02, 20  # nets whose step takes less than SMALL seconds run in blocks


def steps_of(name: str, count: int) -> dict[str, Callable[[], None]]:
    """An optimizer step of each way, all on one network. Both versions have these functions."""
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x, labels, index = make(), torch.randn(count, *shape), torch.arange(count) % 10, torch.arange(count)
    spectral, frobenius = jn.SpectralPenalty(0.01), jn.FrobeniusPenalty(0.01)

    def penalized(penalty: Callable[..., Tensor], **more: Tensor) -> Tensor:
        J = penalty.linearize(net, x)
        return F.cross_entropy(J.output, labels) + penalty(J, **more)

    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.8)

    def step(loss: Callable[[], Tensor]) -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return {
        "plain": lambda: step(lambda: F.cross_entropy(net(x), labels)),
        "spectral, index=": lambda: step(lambda: penalized(spectral, index=index)),
        "Frobenius": lambda: step(lambda: penalized(frobenius)),
    }


def costs(name: str, count: int) -> dict[str, float]:
    torch.empty(31 * 2**20, dtype=torch.uint8)  # see `keep_memory` in lab/bench/timing.py
    steps, times = steps_of(name, count), dict[str, list[float]]()
    seconds = time.thread_time()
    steps["plain"]()
    block = BLOCK if time.thread_time() - seconds < SMALL else 1
    for turn in range(ROUNDS + 6):
        for way, step in steps.items():
            begin = time.thread_time()
            for _ in range(block):
                step()
            if turn >= 6:
                times.setdefault(way, []).append(time.thread_time() - begin)
    return {way: median(found) / median(times["plain"]) for way, found in times.items()}


def tell(nets: list[str]) -> None:
    torch.set_num_threads(1)
    for name, count in zip(nets[::2], nets[1::2], strict=True):
        found = ", ".join(f"{way} {cost:.2f}" for way, cost in costs(name, int(count)).items())
        print(f"  {name}, batch {count}: {found}", flush=True)


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    if sys.argv[1] == "--here":
        return tell(sys.argv[2:])
    commit, nets = sys.argv[1], sys.argv[2:] or USUAL.split()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        subprocess.run(["git", "worktree", "add", "--quiet", other, commit], check=True, cwd=HERE.parent)
        try:
            for source in [HERE.parents[1], other] * TURNS:
                print("this version" if source != other else commit)
                inherited = {**os.environ, "PYTHONPATH": str(source / "src")}
                subprocess.run([sys.executable, HERE, "--here", *nets], check=True, env=inherited)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], check=True, cwd=HERE.parent)


if __name__ == "__main__":
    main()
