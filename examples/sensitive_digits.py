"""At which images is a network most sensitive? σ of its probabilities finds its mistakes without any label.

python examples/sensitive_digits.py [PICTURE]
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import jacnorm as jn

STEPS, BATCH, TRAIN = 400, 64, 900


def train(x, y):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    penalty = jn.SpectralPenalty(weight=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        index = torch.randint(len(x), (BATCH,))
        J = jn.linearize(model, x[index])
        loss = F.cross_entropy(J.output, y[index]) + penalty(J, index=index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main(picture=None):
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(data.target)
    model = train(x[:TRAIN], y[:TRAIN])
    x, y = x[TRAIN:], y[TRAIN:]  # measured where it has not learned

    with torch.no_grad():
        J = jn.linearize(nn.Sequential(model, nn.Softmax(1)), x)  # of the probabilities, not of the scores
    sigma, predicted = jn.spectral_norm(J).sigma, J.output.argmax(1)
    order = sigma.argsort(descending=True)
    error = [(predicted != y)[fifth].float().mean().item() for fifth in order.chunk(5)]
    print(f"{len(x)} test images in order of σ, most sensitive first. Wrong answers in each fifth:")
    print("".join(f"{e:>8.1%}" for e in error))
    if picture:
        from drawings import sensitive_digits

        sensitive_digits(picture, x, y, predicted, sigma, order)
    assert error[0] > 3 * max(error[1:])  # most mistakes are in the first fifth,
    assert error[3] == error[4] == 0  # and none in the last two


if __name__ == "__main__":
    main(*sys.argv[1:])
