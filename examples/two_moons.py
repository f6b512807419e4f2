"""Decision regions as λ grows: two moons, few points, much noise, and a network that can learn them by heart.

python examples/two_moons.py [PICTURE]
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import make_moons
from torch import nn

import jacnorm as jn

WEIGHTS, STEPS, NOISE, GRID = (0, 0.003, 0.03, 0.3), 250, 0.3, 200


def moons(count, seed):
    x, y = make_moons(count, noise=NOISE, random_state=seed)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def train(x, y, weight):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    penalty = jn.SpectralPenalty(weight or 1)
    for _ in range(STEPS):
        J = jn.linearize(model, x)
        loss = F.cross_entropy(J.output, y)
        if weight:
            loss = loss + penalty(J, index=torch.arange(len(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


def main(picture=None):
    (x, y), test = moons(100, seed=0), moons(2000, seed=1)
    plane = torch.cartesian_prod(torch.linspace(-1.8, 2.2, GRID), torch.linspace(-2.2, 2.8, GRID)).flip(1)
    found = []
    print(f"{'λ':>6}{'on train':>10}{'on test':>9}{'mean σ':>9}{'boundary':>10}")
    for weight in WEIGHTS:
        model = train(x, y, weight)
        with torch.no_grad():
            region = model(plane).softmax(1)[:, 1].view(GRID, GRID)
        side = region > 0.5
        boundary = (side[1:] != side[:-1]).sum() + (side[:, 1:] != side[:, :-1]).sum()  # its length, in cells
        sigma = jn.local_lipschitz(model, test[0]).sigma.mean()
        found.append((accuracy(model, *test), sigma.item(), boundary.item(), region))
        print(f"{weight:>6}{accuracy(model, x, y):>10.1%}{found[-1][0]:>9.1%}{sigma:>9.2f}{boundary:>10}")
    if picture:
        from drawings import two_moons

        two_moons(picture, x, y, WEIGHTS, found)
    right, sigma, boundary, _ = zip(*found, strict=True)
    assert max(right[1:3]) > right[0]  # generalizes better with the penalty,
    assert right[3] < right[0]  # up to a point,
    assert boundary[2] < boundary[0]  # by a simpler boundary
    assert sigma[2] < sigma[0] / 10


if __name__ == "__main__":
    main(*sys.argv[1:])
