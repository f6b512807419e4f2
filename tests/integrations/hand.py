"""A few real digits, a small net, and the loop that people write by hand: the oracle of every trainer."""

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


def by_hand(net, digits, penalty, *, epochs=2, accumulate=1, warm=True):
    """SGD over the data in order, with the gradients of `accumulate` batches averaged for each step."""
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    values = []
    for _ in range(epochs):
        for i, index in enumerate(torch.arange(COUNT).split(BATCH)):
            J = jn.linearize(net, digits[0][index])
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
