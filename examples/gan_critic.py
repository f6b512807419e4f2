"""A Wasserstein GAN. ‖J‖₂ of a critic is its slope. With the slope held at 1, it measures a distance.

python examples/gan_critic.py [PICTURE]
"""

import sys

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

import jacnorm as jn

ROUNDS, CRITIC_STEPS, BATCH, PAIRS = 80, 4, 128, 300


def net(outputs):
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs))


def circle(count):
    angle = 2 * torch.pi * torch.rand(count)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2)


def train(penalty):
    """Points that the generator makes; and every few rounds, the distance to the data."""
    torch.manual_seed(0)
    generator, critic = net(2), net(1)
    adams = [torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.5, 0.9)) for model in (generator, critic)]
    history = []
    for i in range(ROUNDS):
        for _ in range(CRITIC_STEPS if i else 20 * CRITIC_STEPS):
            real, made = circle(BATCH), generator(torch.randn(BATCH, 2)).detach()
            loss = critic(made).mean() - critic(real).mean()
            if penalty is not None:
                between = torch.lerp(made, real, torch.rand(BATCH, 1))
                loss = loss + penalty(jn.linearize(critic, between))
            descend(adams[1], loss)
        if i % 5 == 0:
            history.append((i, *distances(generator, critic)))
        descend(adams[0], -critic(generator(torch.randn(BATCH, 2))).mean())
    return generator(torch.randn(PAIRS, 2)).detach(), history


def descend(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def distances(generator, critic):
    """Wasserstein's distance as the critic has it, and exactly: the cheapest way to pair the points."""
    real, made = circle(PAIRS), generator(torch.randn(PAIRS, 2))
    cost = torch.cdist(real, made).numpy()
    return (critic(real).mean() - critic(made).mean()).item(), cost[linear_sum_assignment(cost)].mean()


def main(picture=None):
    found, hinge = {}, jn.SpectralPenalty(weight=5, h="hinge", threshold=1)
    for name, penalty in (("no penalty", None), ("slope held at 1", hinge)):
        points, history = train(penalty)
        found[name] = points, *torch.tensor(history).T
        print(f"{name}\n{'round':>5}{'critic says':>13}{'exact':>8}")
        print("\n".join(f"{i:>5}{said:>13.2f}{exact:>8.2f}" for i, said, exact in history[::3]))
    if picture:
        from drawings import gan_critic

        gan_critic(picture, circle(PAIRS), found)
    _, _, said, exact = found["no penalty"]
    assert (said - exact).abs().max() > 10  # an unbounded critic says nothing,
    _, _, said, exact = found["slope held at 1"]
    assert (said - exact).abs().mean() < 0.2  # one of slope 1 measures,
    assert exact[-1] < exact[0] / 4  # and the generator learns from it


if __name__ == "__main__":
    main(*sys.argv[1:])
