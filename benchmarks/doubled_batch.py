"""Does it pay to send x and v through a layer together, as one batch of twice the size?

    python benchmarks/doubled_batch.py

Prints, for each batch size, the time of all layers of a LeNet on [x; v] over that on x and then on v, for the
layers and for their transposes. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jacnorm.lab.nets import LeNet

ROUNDS = 150
SHAPES = {0: (1, 28, 28), 3: (6, 14, 14), 7: (400,), 9: (120,), 11: (84,)}  # of the layers' inputs
Product = Callable[[Tensor], Tensor]


def products(layer: nn.Module) -> tuple[Product, Product]:
    weight = layer.weight.detach()
    if isinstance(layer, nn.Conv2d):
        padding = layer.padding
        return (
            lambda v: F.conv2d(v, weight, padding=padding),
            lambda u: F.conv_transpose2d(u, weight, padding=padding),
        )
    return (lambda v: F.linear(v, weight)), (lambda u: F.linear(u, weight.t()))


def seconds(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def together(product: Product, a: Tensor, b: Tensor) -> tuple[float, float]:
    """Median time on [a; b], and on a and then b, in turns."""
    pairs = [
        (seconds(lambda: product(torch.cat([a, b]))), seconds(lambda: (product(a), product(b))))
        for _ in range(ROUNDS)
    ]
    return median(p[0] for p in pairs), median(p[1] for p in pairs)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = LeNet()
    print("batch   layers   transposes")
    for batch in (8, 16, 32, 128):
        ratios = []
        for transposed in (False, True):
            times = []
            for position, shape in SHAPES.items():
                forward, backward = products(net[position])
                x, v = torch.randn(2, batch, *shape)
                times.append(
                    together(backward, forward(x), forward(v)) if transposed else together(forward, x, v)
                )
            ratios.append(sum(t[0] for t in times) / sum(t[1] for t in times))
        print(f"{batch:5d}   {ratios[0]:6.2f}   {ratios[1]:10.2f}")


if __name__ == "__main__":
    main()
