"""The content of pictures, read from matplotlib's objects."""

import numpy as np
import pytest
import torch
from torch import nn

from jacnorm.lab import pictures
from jacnorm.lab.sensitivity import directions, sensitivities

CLASSES = ("cat", "dog", "owl")


@pytest.fixture
def drawn(monkeypatch):
    figures = []
    monkeypatch.setattr(pictures, "save_figure", lambda figure, path: figures.append(figure))

    def draw(k, images=4, channels=1):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(25 * channels, 8), nn.ReLU(), nn.Linear(8, 3))
        x = torch.rand(images, channels, 5, 5)
        s = sensitivities(model, x, quiet=True)
        shown = s.most_sensitive(6)
        vectors = directions(model, x[shown], k)
        labels = torch.zeros(images, dtype=torch.long)
        pictures.sensitivity_picture("s.png", s, shown, vectors, x, labels, CLASSES, "pixels")
        return figures[-1].axes[1:], x[shown], model

    return draw


@pytest.mark.parametrize(("k", "images", "channels"), [(1, 1, 1), (2, 4, 1), (3, 2, 3)])
def test_singular_vectors(drawn, k, images, channels):
    axes, x, model = drawn(k, images, channels)
    assert len(axes) == images * (1 + k)
    W1, W2 = model[1].weight, model[3].weight
    for n in range(images):
        mask = (model[1](x[n].flatten()) > 0).float()
        U, S, V = torch.linalg.svd((W2 * mask @ W1).detach(), full_matrices=False)
        for j in range(k):
            panel = axes[(1 + j) * images + n]
            image = panel.images[0]
            low, high = image.get_clim()
            assert low == -high
            v = V[j].view(channels, 5, 5).sum(0).numpy()
            shown = np.asarray(image.get_array())
            assert min(np.abs(shown - v).max(), np.abs(shown + v).max()) < 1e-5
            label = panel.get_xlabel()
            assert f"{S[j]:#.3g}" in label
            u = U[:, j] * U[:, j][U[:, j].abs().argmax()].sign()
            assert f"{CLASSES[u.argmax()]} ↑  {CLASSES[u.argmin()]} ↓" in label
