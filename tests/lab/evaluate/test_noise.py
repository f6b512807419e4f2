"""White noise on a classifier whose accuracy is known in closed form."""

import math

import pytest
import torch
from torch import nn

from jacnorm.lab.data import Split
from jacnorm.lab.evaluate import EvaluationError, white_noise


class Above(nn.Module):
    """It predicts class 1 if the mean pixel is above one half."""

    def forward(self, images):
        surplus = (images - 0.5).sum((1, 2, 3))
        return torch.stack([torch.zeros_like(surplus), surplus], 1)


def test_accuracy_is_the_normal_distribution_function():
    """At distance d from the plane it is right with probability Φ(d/σ). No pixel comes near 0 or 1."""
    distance, pixels = 0.03, 16
    images = torch.full((8000, 1, 4, 4), 0.5 + distance / math.sqrt(pixels))
    variances = (0.0, 0.0004, 0.0016, 0.0036)
    r = white_noise(Above(), Split(images, torch.ones(8000, dtype=torch.int64)), variances=variances)
    assert r.clean == r.accuracy[0] == 1
    for variance, accuracy, drop in list(zip(variances, r.accuracy, r.drop, strict=True))[1:]:
        expected = 0.5 * (1 + math.erf(distance / math.sqrt(2 * variance)))
        assert abs(accuracy - expected) < 4 * math.sqrt(expected * (1 - expected) / 8000)
        assert drop == 1 - accuracy
    assert r.accuracy[-1] < 0.75


def test_pixels_are_clipped():
    """With huge noise on black images, each pixel is 0 or 1 with probability one half."""
    seen = []

    class Watch(nn.Module):
        def forward(self, images):
            seen.append(images)
            return torch.eye(2)[0].expand(len(images), 2)

    split = Split(torch.zeros(50, 1, 4, 4), torch.zeros(50, dtype=torch.int64))
    white_noise(Watch(), split, variances=(1e8,))
    noisy = seen[-1]
    assert ((noisy == 0) | (noisy == 1)).all()
    assert abs(noisy.mean() - 0.5) < 0.1


def test_a_seed_repeats_itself_and_the_global_state_stays(trained, few):
    state = torch.get_rng_state()
    a, b, c = (white_noise(trained, few, variances=(0.2,), seed=s) for s in (0, 0, 1))
    assert a == b
    assert a.accuracy != c.accuracy
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_variances(trained, few):
    with pytest.raises(EvaluationError, match="variances"):
        white_noise(trained, few, variances=(0.2, 0.1))
