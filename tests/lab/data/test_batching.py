from __future__ import annotations

import pytest
import torch

from jacnorm.lab.data import Split, batches


@pytest.fixture
def split() -> Split:
    draw = torch.Generator().manual_seed(0)
    return Split(torch.rand(10, 1, 2, 2, generator=draw), torch.arange(10) * 7)


def order(split: Split, generator: torch.Generator | None) -> list[int]:
    return torch.cat([index for index, _, _ in batches(split, 3, generator)]).tolist()


@pytest.mark.parametrize("seed", [None, 0])
def test_the_index_names_the_images(split: Split, seed: int | None) -> None:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    for index, images, labels in batches(split, 3, generator):
        assert index.dtype == torch.int64
        assert torch.equal(images, split.images[index])
        assert torch.equal(labels, split.labels[index])


def test_one_pass_sees_each_image_once(split: Split) -> None:
    assert sorted(order(split, torch.Generator().manual_seed(0))) == list(range(10))


def test_without_a_generator_images_come_in_order(split: Split) -> None:
    assert order(split, None) == list(range(10))


def test_the_last_batch_is_as_small_as_it_comes(split: Split) -> None:
    assert [len(labels) for _, _, labels in batches(split, 4)] == [4, 4, 2]


def test_the_order_comes_from_the_generator_alone(split: Split) -> None:
    torch.manual_seed(1)
    first = order(split, torch.Generator().manual_seed(5))
    torch.manual_seed(2)
    assert order(split, torch.Generator().manual_seed(5)) == first


def test_each_pass_has_an_order_of_its_own(split: Split) -> None:
    generator = torch.Generator().manual_seed(0)
    assert order(split, generator) != order(split, generator)


def test_changing_a_batch_does_not_change_the_data(split: Split) -> None:
    before = split.images.clone()
    for _, images, _ in batches(split, 5):
        images.zero_()
    assert torch.equal(split.images, before)


def test_an_empty_split_has_no_batches(split: Split) -> None:
    assert list(batches(split.take(torch.arange(0)), 4)) == []


def test_a_batch_holds_at_least_one_image(split: Split) -> None:
    with pytest.raises(ValueError, match="batch_size=0; a batch holds at least one image"):
        batches(split, 0)
