"""What the penalties of other libraries cost, and what stands for them here, for docs/coming-from.md.

    python benchmarks/coming_from.py [LIBRARY]

Prints the time of a step with each over that of a plain step of the same network, in turns. One thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor, nn

import jacnorm as jn
from jacnorm.lab.nets import LeNet

ROUNDS, BLOCK = 9, 3
Penalize = Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]]  # output and penalty


def pulled(y: Tensor, x: Tensor, u: Tensor) -> Tensor:
    return torch.autograd.grad(y, x, u, create_graph=True)[0]


def jacobian_regularizer(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = net(x)
    v = nn.functional.normalize(torch.randn_like(y), dim=1)
    return y, y.shape[1] * pulled(y, x, v).square().sum() / (2 * len(y))


def deepinv(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = net(x)
    u = nn.functional.normalize(torch.randn_like(x).flatten(1), dim=1).view_as(x)
    for _ in range(10):
        w = torch.ones_like(y, requires_grad=True)
        (pushed,) = torch.autograd.grad(pulled(y, x, w), w, u, create_graph=True)
        v = pulled(y, x, pushed)
        size = (u * v).flatten(1).sum(1)
        u = nn.functional.normalize(v.flatten(1), dim=1).view_as(x)
    return y, size.sqrt().max()


def wgan_gp(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = net(x)
    return y, ((pulled(y, x, torch.ones_like(y)).flatten(1).norm(dim=1) - 1) ** 2).mean()


def jac_reg(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = net(x)
    return y, pulled(y, x, torch.randn_like(y)).square().sum() / x.numel()


def lipsnet(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    return net(x), torch.vmap(torch.func.jacrev(net))(x).norm(dim=(1, 2)).mean()


def ours(penalty: jn.Penalty) -> Penalize:
    def penalize(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        J = jn.linearize(net, x)
        return J.output, penalty(J).mean()

    return penalize


def dense(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    J = jn.linearize(net, x)
    return J.output, J.dense().norm(dim=(1, 2)).mean()


def mlp(*sizes: int, act: type[nn.Module]) -> nn.Sequential:
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), act())]
    return nn.Sequential(*layers[:-1])


def denoiser() -> nn.Module:
    inner = [m for _ in range(3) for m in (nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), *inner, nn.Conv2d(32, 1, 3, padding=1))


def two_sided(s: Tensor) -> Tensor:
    return (s - 1) ** 2


CASES: dict[str, tuple[nn.Module, tuple[int, ...], Penalize, Penalize]] = {
    "jacobian_regularizer, n=1: LeNet": (
        LeNet(),
        (32, 1, 28, 28),
        jacobian_regularizer,
        ours(jn.FrobeniusPenalty()),
    ),
    "deepinv, ten rounds: five convolutions": (
        denoiser(),
        (4, 1, 32, 32),
        deepinv,
        ours(jn.SpectralPenalty(iterations=10, reduction="max")),
    ),
    "WGAN-GP: MLP": (
        mlp(784, 512, 512, 1, act=nn.LeakyReLU),
        (64, 784),
        wgan_gp,
        ours(jn.GradientPenalty(10, None, h=two_sided)),
    ),
    "torchdeq: MLP": (
        mlp(256, 256, 256, act=nn.Tanh),
        (64, 256),
        jac_reg,
        ours(jn.FrobeniusPenalty()),
    ),
    "LipsNet: policy of two actions": (
        mlp(16, 64, 64, 2, act=nn.Tanh),
        (256, 16),
        lipsnet,
        dense,
    ),
}


def plain(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    y = net(x)
    return y, y.new_zeros(())


def seconds(net: nn.Module, x: Tensor, penalize: Penalize) -> float:
    begin = time.thread_time()
    for _ in range(BLOCK):
        net.zero_grad()
        output, penalty = penalize(net, x)
        (output.square().mean() + penalty).backward()
    return time.thread_time() - begin


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    chosen = sys.argv[1] if sys.argv[1:] else ""
    for name, (net, shape, theirs, mine) in CASES.items():
        if not name.startswith(chosen):
            continue
        x = torch.randn(shape)
        found = [[seconds(net, x, way) for way in (plain, theirs, mine)] for _ in range(ROUNDS + 3)][3:]
        ratios = [median(row[k] / row[0] for row in found) for k in (1, 2)]
        print(f"{name:40} theirs {ratios[0]:5.1f}   ours {ratios[1]:5.1f}")


if __name__ == "__main__":
    main()
