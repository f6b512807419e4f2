from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from jacnorm.lab.data import DataSet, load
from jacnorm.lab.errors import DataError


def test_shapes_and_range(digits: DataSet) -> None:
    assert digits.train.images.shape == (1437, 1, 8, 8)
    assert digits.test.images.shape == (360, 1, 8, 8)
    assert digits.train.images.min() == 0
    assert digits.train.images.max() == 1
    assert digits.classes == tuple("0123456789")


def test_the_split_is_the_same_for_everyone(digits: DataSet) -> None:
    assert digits.test.labels[:12].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5, 2, 8]
    assert digits.mean == pytest.approx((0.305587,), abs=1e-6)
    assert digits.std == pytest.approx((0.376297,), abs=1e-6)


def test_they_are_scikit_learns(digits: DataSet) -> None:
    theirs = load_digits()
    order = np.random.RandomState(0).permutation(len(theirs.target))
    images = torch.cat([digits.test.images, digits.train.images])
    labels = torch.cat([digits.test.labels, digits.train.labels])
    assert torch.equal(images.double().squeeze(1) * 16, torch.tensor(theirs.images[order]))
    assert torch.equal(labels, torch.tensor(theirs.target[order]))


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jacnorm.lab.data.digits.find_spec", lambda name: None)
    with pytest.raises(DataError, match="come with scikit-learn"):
        load("digits")


def test_every_class_is_in_both_splits(digits: DataSet) -> None:
    assert digits.train.labels.bincount().min() > 100
    assert digits.test.labels.bincount().min() > 20


def test_nothing_is_read_or_written(tmp_path: Path) -> None:
    load("digits", root=tmp_path / "absent", download=False)
    assert list(tmp_path.iterdir()) == []
