"""Calibration and the loss landscape are compared with closed forms."""

import math

import pytest
import torch
from torch import nn

from jacnorm.lab.data import Split
from jacnorm.lab.evaluate import calibration, landscape


class Logistic(nn.Module):
    """Logits (0, s · (sum of pixels)) of images of n pixels."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, images):
        logit = self.scale * images.sum((1, 2, 3))
        return torch.stack([torch.zeros_like(logit), logit], 1)


def test_calibration_error_of_a_known_confidence():
    """Confidence 0.82 on images of which 0.6 are right, and 0.55 on images that are all right."""
    sure, unsure = math.log(0.82 / 0.18), math.log(0.55 / 0.45)
    images = torch.tensor([sure] * 10 + [unsure] * 10).view(20, 1, 1, 1) / 2
    labels = torch.tensor([1] * 6 + [0] * 4 + [1] * 10)
    r = calibration(Logistic(2.0), Split(images, labels))
    assert r.ece == pytest.approx((0.22 + 0.45) / 2, abs=1e-6)
    assert [(i, n) for i, n in enumerate(r.counts) if n] == [(8, 10), (12, 10)]
    assert r.confidence[12] == pytest.approx(0.82)
    assert (r.accuracy[12], r.accuracy[8], r.accuracy[0]) == (0.6, 1.0, None)


def test_slope_and_curvature_of_the_logistic_loss():
    """loss(t) = log(1 + e^(-z - t s √n)) along the step's unit direction, for the label 1."""
    s, n, step = 1.5, 4, 0.02
    images = torch.tensor([[0.1, 0.2, 0.3, 0.2], [0.4, 0.1, 0.9, 0.3]]).view(2, 1, 2, 2)
    r = landscape(Logistic(s), Split(images, torch.ones(2, dtype=torch.int64)), step_size=step)
    slopes, curvatures = [], []
    for z in (s * images.sum((1, 2, 3))).tolist():
        here = s * math.sqrt(n) / (1 + math.exp(z))
        length = step * math.sqrt(n)
        there = s * math.sqrt(n) / (1 + math.exp(z - s * math.sqrt(n) * length))
        slopes.append(here)
        curvatures.append((there - here) / length)
    assert r.slope == pytest.approx(sum(slopes) / 2, rel=1e-5)
    assert r.attack_slope == pytest.approx(sum(slopes) / 2, rel=1e-5)
    assert r.curvature == pytest.approx(sum(curvatures) / 2, rel=1e-3)


def test_a_flat_loss_has_no_slope_and_no_curvature():
    images = torch.full((3, 1, 2, 2), 0.5)
    r = landscape(Logistic(0.0), Split(images, torch.zeros(3, dtype=torch.int64)))
    assert (r.slope, r.attack_slope, r.curvature) == (0, 0, 0)
