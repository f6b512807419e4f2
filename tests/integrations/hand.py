"""A few real digits, a small net, and the loop that people write by hand: the oracle of every trainer."""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import jacnorm as jn
from jacnorm.penalties import base

COUNT, BATCH, RATE = 24, 8, 0.1


def digits():
    data = load_digits()
    images = torch.tensor(data.images[:COUNT], dtype=torch.float32).unsqueeze(1) / 8 - 1
    return images, torch.tensor(data.target[:COUNT])


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 10)),
    )


def by_hand(net, digits, penalty, *, epochs=2, accumulate=1, warm=True, precision=None):
    """SGD over the data in order, with the gradients of `accumulate` batches averaged for each step."""
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    values = []
    for _ in range(epochs):
        for i, index in enumerate(torch.arange(COUNT).split(BATCH)):
            J = jn.linearize(net, digits[0][index], precision=precision)
            value = penalty(J, index=index if warm else None)
            ((F.cross_entropy(J.output, digits[1][index]) + value) / accumulate).backward()
            values.append(value.item())
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return values


def plain_runs(monkeypatch):
    """The steps in which a model was not recorded, as they come."""
    found, run = [], base.run_plainly
    monkeypatch.setattr(base, "run_plainly", lambda request: found.append(request) or run(request))
    return found


def assert_in_half_precision(trained, net, digits, wrap=lambda net: net):
    """The weights are those of a loop by hand in bfloat16, which are not those of one in float32."""
    found = {}
    for precision in (None, torch.bfloat16):
        model = copy.deepcopy(net)
        by_hand(wrap(model), digits, jn.SpectralPenalty(0.5), precision=precision)
        found[precision] = torch.cat([p.detach().flatten() for p in model.parameters()])
    mine = torch.cat([p.detach().flatten() for p in trained.parameters()])
    torch.testing.assert_close(mine, found[torch.bfloat16], rtol=1e-4, atol=1e-6)
    assert (mine - found[None]).abs().max() > 1e-5
