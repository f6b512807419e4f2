"""Accuracy under noise: a small net on scikit-learn's digits, trained with and without the penalty."""

import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import jacnorm as jn

EPOCHS, BATCH, TRAIN, NOISE = 60, 32, 300, 0.3


def images():
    """The first 300 digits to train on, the other 1,497 to test on: few enough that a net overfits."""
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    return x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:]


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def train(model, x, y, penalty=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    generator = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for index in torch.randperm(len(x), generator=generator).split(BATCH):
            J = jn.linearize(model, x[index])
            loss = F.cross_entropy(J.output, y[index])
            if penalty is not None:
                loss = loss + penalty(J, index=index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    x, y, x_test, y_test = images()
    noisy = (x_test + NOISE * torch.randn(x_test.shape, generator=torch.Generator().manual_seed(1))).clamp(
        0, 1
    )
    print(f"{TRAIN} digits to train on, {len(x_test)} to test on, {EPOCHS} epochs\n")
    print(f"{'penalty':<28}{'accuracy':>9}{'with noise':>12}{'mean σ':>9}{'seconds':>9}")
    found = {}
    for name, penalty in {
        "none": None,
        "SpectralPenalty(weight=0.1)": jn.SpectralPenalty(weight=0.1),
    }.items():
        begin, model = time.perf_counter(), net()
        train(model, x, y, penalty)
        seconds = time.perf_counter() - begin
        with torch.no_grad():
            sigma = jn.spectral_norm(jn.linearize(model, x_test)).sigma.mean().item()
        clean, robust = accuracy(model, x_test, y_test), accuracy(model, noisy, y_test)
        found[name] = clean, robust, sigma
        print(f"{name:<28}{clean:>9.1%}{robust:>12.1%}{sigma:>9.2f}{seconds:>9.1f}")
    print("\nσ is the largest factor by which the net stretches a small change of the image at hand.")
    (clean, robust, sigma), (clean_s, robust_s, sigma_s) = found.values()
    assert sigma_s < sigma / 2
    assert robust_s > robust
    assert clean_s > clean - 0.01


if __name__ == "__main__":
    main()
