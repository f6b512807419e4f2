"""What each method costs a step, side by side: of a GAN's critic, and an update of a policy.

    python benchmarks/tasks.py

One thread, and the time that it has computed, so that others on the machine count for little. Rounds go
through all methods in turn, and ratios are of medians. "by hand" is as people write it: the gradient in the
input by autograd with `create_graph=True`, or `vmap(jacrev)` as LipsNet has it.
"""

import statistics
import time

import torch
import torch.nn.functional as F

import jacnorm as jn
from jacnorm.lab.tasks.gan import critic, descend

BATCH, ROUNDS, WARM = 64, 15, 3


def slopes(net, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    return slope.flatten(1).norm(dim=1)


def critic_losses(net, real, made):
    """By name, a function that gives the whole loss of a step."""
    gp = jn.GradientPenalty(10.0, None, h=lambda s: (s - 1) ** 2)
    r1, spectral = jn.GradientPenalty(1.0, None, h="square"), jn.SpectralPenalty(1.0)

    def contrast(scores=None):
        scores = net(real) if scores is None else scores
        return F.softplus(net(made)).mean() + F.softplus(-scores).mean()

    def of_real(penalty):
        J = jn.linearize(net, real)
        return contrast(J.output) + penalty(J)

    def between():
        return torch.lerp(made, real, torch.rand(BATCH, 1, 1, 1))

    return {
        "none": contrast,
        "WGAN-GP": lambda: contrast() + gp(jn.linearize(net, between())),
        "WGAN-GP by hand": lambda: contrast() + 10 * (slopes(net, between()) - 1).square().mean(),
        "R1": lambda: of_real(r1),
        "R1 by hand": lambda: contrast() + slopes(net, real).square().mean(),
        "spectral": lambda: contrast() + spectral(jn.linearize(net, between())),
    }


def policy_losses(net, states):
    """Of a network from 8 numbers to 2, as LunarLander has them; the policy's loss stands for PPO's."""
    spectral, frobenius = jn.SpectralPenalty(0.1), jn.FrobeniusPenalty(0.1)

    def plain(actions):
        return actions.square().mean()

    def with_penalty(penalty):
        J = jn.linearize(net, states)
        return plain(J.output) + penalty(J)

    def caps():
        now, near = net(states), net(states + 0.05 * torch.randn_like(states))
        return plain(now) + (now - near).norm(dim=1).mean() + (now - now.roll(1, 0)).norm(dim=1).mean()

    def jacrev():
        J = torch.func.vmap(torch.func.jacrev(net))(states)
        return plain(net(states)) + J.flatten(1).norm(dim=1).mean()

    return {
        "none": lambda: plain(net(states)),
        "spectral": lambda: with_penalty(spectral),
        "Frobenius": lambda: with_penalty(frobenius),
        "CAPS": caps,
        "vmap(jacrev) by hand": jacrev,
    }


def compare(title, net, losses):
    adam = torch.optim.Adam(net.parameters(), 1e-5)
    times = {name: [] for name in losses}
    for _ in range(ROUNDS + WARM):
        for name, loss in losses.items():
            begin = time.thread_time()
            descend(adam, loss())
            times[name].append(time.thread_time() - begin)
    medians = {name: statistics.median(of[WARM:]) for name, of in times.items()}
    print(f"{title}: a step without is {1000 * medians['none']:.2f} ms")
    for name, median in medians.items():
        print(f"  {name:<22}{median / medians['none']:6.2f}")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for colours in (1, 3):
        net = critic(32, colours, 28, normalize=False)
        images = torch.rand(2, BATCH, colours, 28, 28) * 2 - 1
        compare(f"critic, {colours}×28×28, batch {BATCH}", net, critic_losses(net, *images))
    for hidden in (64, 256):
        layers = [torch.nn.Linear(8, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, hidden)]
        net = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(hidden, 2))
        states = torch.randn(BATCH, 8)
        compare(f"policy 8-{hidden}-{hidden}-2, batch {BATCH}", net, policy_losses(net, states))


if __name__ == "__main__":
    main()
