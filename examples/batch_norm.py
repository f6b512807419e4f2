"""Batch norm and the penalty: two conventions for the batch's variance, and their effect on a network.

`batch_norm="fixed"` is the paper's: for the penalty the variance is a constant. The penalty can then become
small by shrinking the weights before the norm, until steps and running statistics no longer fit. "flowing" is
the default: the gradient passes through the variance, and the scale of these weights does not matter.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import jacnorm as jn

EPOCHS, BATCH, TRAIN = 20, 32, 300


def images():
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    return x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:]


def train(x, y, convention, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )
    penalty = jn.SpectralPenalty(weight=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(x)).split(BATCH):
            J = jn.linearize(model, x[index], batch_norm=convention or "flowing")
            loss = F.cross_entropy(J.output, y[index])
            if convention:
                loss = loss + penalty(J, index=index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def main():
    x, y, x_test, y_test = images()
    print(f"{'batch norm':<12}{'accuracy':>9}{'mean σ':>9}   (mean of 2 seeds)")
    accuracy = {}
    for convention in (None, "fixed", "flowing"):
        found = []
        for seed in range(2):
            model = train(x, y, convention, seed)
            with torch.no_grad():
                right = (model(x_test).argmax(1) == y_test).float().mean().item()
                sigma = jn.spectral_norm(jn.linearize(model, x_test)).sigma.mean().item()
            found.append((right, sigma))
        accuracy[convention], sigma = (sum(values) / 2 for values in zip(*found, strict=True))
        print(f"{convention or 'no penalty':<12}{accuracy[convention]:>9.1%}{sigma:>9.2f}")
    assert accuracy["flowing"] > accuracy["fixed"] + 0.1


if __name__ == "__main__":
    main()
