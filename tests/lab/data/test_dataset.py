from __future__ import annotations

import pytest
import torch

from jacnorm.lab.data import DataSet, Split
from jacnorm.lab.data.dataset import channel_statistics


def numbered(count: int, first: int = 0) -> Split:
    """Images whose pixels all equal the label."""
    labels = torch.arange(first, first + count)
    return Split(labels.float().view(-1, 1, 1, 1).expand(-1, 2, 3, 3) / 1000, labels)


@pytest.fixture
def data() -> DataSet:
    return DataSet.of("numbers", numbered(50), numbered(10, first=100), classes=("all",))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 8, 8), r"tokens int64 \(N, length\), not torch.float32 of shape \(3, 8, 8\)"),
        (torch.zeros(3, 1, 8, 8, dtype=torch.uint8), "must be float32 .* not torch.uint8"),
    ],
)
def test_split_refuses_other_images(images: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split(images, torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("labels", [torch.zeros(2, dtype=torch.int64), torch.zeros(3)])
def test_split_refuses_other_labels(labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"labels must be int64 of shape \(3,\)"):
        Split(torch.zeros(3, 1, 8, 8), labels)


def test_held_out_divides_train_and_leaves_test_alone(data: DataSet) -> None:
    selection = data.held_out(0.2, seed=0)
    kept, validation = set(selection.train.labels.tolist()), set(selection.test.labels.tolist())
    assert len(validation) == 10
    assert kept.isdisjoint(validation)
    assert kept | validation == set(range(50))


def test_held_out_keeps_images_with_their_labels(data: DataSet) -> None:
    for split in (data.held_out(0.2, seed=0).train, data.held_out(0.2, seed=0).test):
        assert torch.equal(split.images[:, 0, 0, 0], split.labels.float() / 1000)


def test_held_out_measures_only_what_is_left_in_train(data: DataSet) -> None:
    selection = data.held_out(0.2, seed=0)
    assert (selection.mean, selection.std) == channel_statistics(selection.train.images)
    assert selection.mean != data.mean
    assert selection.name == "numbers-held-out"


def test_held_out_depends_on_the_seed_alone(data: DataSet) -> None:
    torch.manual_seed(1)
    first = data.held_out(0.2, seed=0).test.labels
    torch.manual_seed(2)
    assert torch.equal(first, data.held_out(0.2, seed=0).test.labels)
    assert not torch.equal(first, data.held_out(0.2, seed=1).test.labels)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 0.001, 2.0])
def test_held_out_leaves_images_on_both_sides(data: DataSet, fraction: float) -> None:
    with pytest.raises(ValueError, match=f"fraction={fraction} holds out .* of 50 images"):
        data.held_out(fraction, seed=0)


def test_to_moves_both_splits(data: DataSet) -> None:
    moved = data.to("meta")
    assert moved.train.images.is_meta
    assert moved.test.labels.is_meta
    assert moved.mean == data.mean


def test_statistics_are_those_of_each_channel() -> None:
    images = torch.rand(3000, 2, 3, 5, generator=torch.Generator().manual_seed(0))
    images[:, 1] *= 0.1
    mean, std = channel_statistics(images)
    exact = images.double()
    assert mean == pytest.approx(exact.mean((0, 2, 3)).tolist(), rel=1e-12)
    assert std == pytest.approx(exact.std((0, 2, 3), correction=0).tolist(), rel=1e-12)


def test_a_constant_channel_has_no_spread() -> None:
    mean, std = channel_statistics(torch.full((7, 1, 2, 2), 0.3))
    assert mean == pytest.approx((0.3,))
    assert std == pytest.approx((0.0,), abs=1e-7)
