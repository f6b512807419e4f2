"""Judges are compared with closed forms and SciPy."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from jacnorm.lab.data import load
from jacnorm.lab.tasks.judges import (
    Reference,
    divergence_from_uniform,
    frechet,
    judge_of,
    moments,
    precision_and_recall,
)


def test_frechet_of_independent_numbers_is_known():
    """Σ (mᵢ − nᵢ)² + (√cᵢ − √dᵢ)²."""
    m, n = torch.tensor([0.0, 1, 2]).double(), torch.tensor([1.0, 1, 0]).double()
    c, d = torch.tensor([1.0, 4, 0]).double(), torch.tensor([9.0, 4, 1]).double()
    assert frechet((m, c.diag()), (n, d.diag())) == pytest.approx(1 + 4 + 4 + 1)


def test_frechet_is_that_of_scipys_square_root():
    torch.manual_seed(0)
    a, b = (moments(torch.randn(50, 6) @ torch.randn(6, 6) + shift) for shift in (0, 1))
    product = sqrtm(a[1].numpy() @ b[1].numpy())
    expected = (a[0] - b[0]).square().sum() + a[1].trace() + b[1].trace() - 2 * np.trace(product.real)
    assert frechet(a, b) == pytest.approx(float(expected), rel=1e-9)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)


def test_precision_and_recall_tell_quality_from_variety():
    torch.manual_seed(0)
    real = torch.cat([torch.randn(200, 2), torch.randn(200, 2) + 30])
    one_mode, far = torch.randn(400, 2), torch.randn(400, 2) + 100
    precision, recall = precision_and_recall(real, one_mode)
    assert precision > 0.9
    assert 0.4 < recall < 0.55
    assert precision_and_recall(real, far) == (0, 0)
    assert precision_and_recall(real, real) == (1, 1)


def test_divergence_from_uniform():
    assert divergence_from_uniform(torch.tensor([5, 5, 5, 5])) == pytest.approx(0)
    assert divergence_from_uniform(torch.tensor([7, 0, 0, 0])) == pytest.approx(np.log(4))
    assert divergence_from_uniform(torch.tensor([3, 1])) == pytest.approx(
        0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    )


def test_the_judge_sees_modes_of_single_and_stacked_images(tmp_path):
    data = load("digits")
    judge = judge_of(data, 8, tmp_path)
    images, labels = data.train.images[:300], data.train.labels[:300]
    features, modes = judge.features(images)
    assert features.shape == (300, 256)
    assert (modes == labels).double().mean() > 0.95
    triples = torch.randint(300, (100, 3), generator=torch.Generator().manual_seed(0))
    features_of_three, modes_of_three = judge.features(images[triples].squeeze(2))
    torch.testing.assert_close(features_of_three, features[triples].flatten(1))
    assert torch.equal(modes_of_three, (modes[triples] * torch.tensor([100, 10, 1])).sum(1))
    scores = Reference.of(judge, images).scores(images)
    assert scores["frechet"] == pytest.approx(0, abs=1e-6)
    assert scores["modes"] == 10
    assert (scores["precision"], scores["recall"]) == (1, 1)
    assert Reference.of(judge, images[triples].squeeze(2)).modes == 1000


def test_a_judge_is_trained_once(tmp_path, monkeypatch):
    data = load("digits")
    judge_of(data, 1, tmp_path)
    monkeypatch.setattr("jacnorm.lab.tasks.judges.train", None)
    judge_of(data, 1, tmp_path)
