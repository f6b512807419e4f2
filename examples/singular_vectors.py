"""Which changes of one image move the scores most? The right singular vectors of J, drawn as pictures.

python examples/singular_vectors.py [PICTURE]
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import jacnorm as jn

BATCH, TRAIN, IMAGE, RANDOM = 64, 900, 912, 200
LENGTHS = torch.linspace(-2, 2, 201)


def train(x, y):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(400):
        index = torch.randint(len(x), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def lead(model, x, label, directions):
    """How far the right class is ahead of the best other one: a row a length, a column a direction."""
    moved = x + LENGTHS.view(-1, 1, 1, 1, 1) * directions
    scores = model(moved.flatten(0, 1)).view(*moved.shape[:2], -1)
    return scores[..., label] - scores.index_fill(2, label, -torch.inf).amax(2)


def first_flip(leads):
    """The shortest step with which another class wins."""
    return LENGTHS.abs()[(leads < 0).any(1)].min().item()


def main(picture=None):
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    model = train(images[:TRAIN], labels[:TRAIN])
    x, label = images[[IMAGE]], labels[IMAGE]

    with torch.no_grad():
        _, S, V = jn.singular_vectors(jn.linearize(model, x), k=3)
        moved = (model(x + 0.01 * V[0]) - model(x)).norm(dim=1) / 0.01
    random = F.normalize(torch.randn(RANDOM, 64), dim=1).view(-1, 1, 8, 8)
    along, by_chance = lead(model, x, label, V[0]), lead(model, x, label, random)
    soon, late = first_flip(along[:, :1]), first_flip(by_chance)
    print("σ₁, σ₂, σ₃:", *[f"{s:.2f}" for s in S[0]])
    print("A small step along each moves the scores by", *[f"{m:.2f}" for m in moved], "times its length.")
    print(f"Another class wins after {soon:.2f} along v₁, {late:.2f} along the best of {RANDOM} random ways.")
    if picture:
        from drawings import singular_vectors

        singular_vectors(picture, LENGTHS, x, label, S[0], V[0], along[:, 0], by_chance)
    assert torch.allclose(moved, S[0], rtol=1e-2)
    assert soon < late / 2


if __name__ == "__main__":
    main(*sys.argv[1:])
