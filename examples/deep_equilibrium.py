"""A deep equilibrium layer: its output is the fixed point z = f(z, x), found by repeating f.

Repeating f converges where ‖∂f/∂z‖₂ < 1. The usual loss does not ask for that. A penalty does (Bai, Koltun &
Kolter, 2021, take the Frobenius norm). Only the last round is differentiated (Fung et al., 2022).

python examples/deep_equilibrium.py [PICTURE]
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import jacnorm as jn

STEPS, BATCH, TRAIN, WIDTH, ROUNDS = 400, 32, 900, 48, 12


class Layer(nn.Module):
    """f(z, x)."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.input = nn.Linear(64, WIDTH)

    def forward(self, z, x):
        return torch.relu(self.outer(torch.relu(self.inner(z) + self.input(x))))


@torch.no_grad()
def repeat(f, x, rounds):
    """The last z, and how far each round has moved each sample."""
    z, moved = x.new_zeros(len(x), WIDTH), []
    for _ in range(rounds):
        z, before = f(z, x), z
        moved.append((z - before).norm(dim=1) / z.norm(dim=1))
    return z, torch.stack(moved)


def train(x, y, penalty):
    torch.manual_seed(0)
    f, head = Layer(), nn.Linear(WIDTH, 10)
    optimizer = torch.optim.Adam([*f.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(STEPS):
        index = torch.randint(len(x), (BATCH,))
        z, _ = repeat(f, x[index], ROUNDS)
        J = jn.linearize(f, z, x[index])  # ∂f/∂z; J.output is one more round, the one that is differentiated
        loss = F.cross_entropy(head(J.output), y[index])
        if penalty is not None:
            loss = loss + penalty(J, index=index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return f, head


def main(picture=None):
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    x_test, y_test = x[TRAIN:], y[TRAIN:]
    found, hinge = {}, jn.SpectralPenalty(weight=0.1, h="hinge", threshold=0.7)
    print(f"{'':<12}{'accuracy':>9}{'max σ':>8}{'last move: median':>19}{'largest':>10}")
    for name, penalty in (("no penalty", None), ("penalty", hinge)):
        f, head = train(x[:TRAIN], y[:TRAIN], penalty)
        z, moved = repeat(f, x_test, 60)
        with torch.no_grad():
            right = (head(z).argmax(1) == y_test).float().mean().item()
            sigma = jn.spectral_norm(jn.linearize(f, z, x_test)).sigma.max().item()
        found[name] = right, sigma, moved
        print(f"{name:<12}{right:>9.1%}{sigma:>8.2f}{moved[-1].median():>19.1e}{moved[-1].max():>10.1e}")
    if picture:
        from drawings import deep_equilibrium

        deep_equilibrium(picture, found)
    (right, sigma, moved), (right_p, sigma_p, moved_p) = found.values()
    assert sigma > 1 > sigma_p
    assert moved[-1].max() > 1e-3  # some images never come to rest;
    assert moved_p[-1].max() < 1e-4  # with ‖∂f/∂z‖ < 1 all of them do,
    assert right_p > right - 0.02  # at no cost


if __name__ == "__main__":
    main(*sys.argv[1:])
