from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from jacnorm.lab.data import crop_and_flip
from jacnorm.lab.data.dataset import PADDING


def images(count: int) -> Tensor:
    return 0.1 + torch.rand(count, 3, 10, 12, generator=torch.Generator().manual_seed(0))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def move_made(image: Tensor, result: Tensor) -> tuple[int, int, bool]:
    """The crop of the padded image, and whether it is mirrored. All of them are tried."""
    padded = pad(image, (PADDING,) * 4)
    height, width = image.shape[1:]
    for top in range(2 * PADDING + 1):
        for left in range(2 * PADDING + 1):
            crop = padded[:, top : top + height, left : left + width]
            for mirrored in (False, True):
                if torch.equal(result, crop.flip(-1) if mirrored else crop):
                    return top, left, mirrored
    raise AssertionError("the result is no crop of the image")


def test_each_result_is_a_crop_of_its_own_image() -> None:
    original = images(300)
    results = crop_and_flip(original, generator())
    moves = [move_made(*pair) for pair in zip(original, results, strict=True)]
    tops, lefts, mirrored = zip(*moves, strict=True)
    assert set(tops) == set(lefts) == set(range(9))
    assert sum(mirrored) / len(moves) == pytest.approx(0.5, abs=0.1)
    # Row, column and mirror are drawn independently: 300 draws of 162 moves give about 137 different ones.
    assert len(set(moves)) > 110


def test_the_draws_come_from_the_generator_alone() -> None:
    original = images(8)
    torch.manual_seed(1)
    first = crop_and_flip(original, generator(3))
    torch.manual_seed(2)
    assert torch.equal(first, crop_and_flip(original, generator(3)))
    assert not torch.equal(first, crop_and_flip(original, generator(4)))


def test_the_images_themselves_stay() -> None:
    original = images(8)
    crop_and_flip(original, generator())
    assert torch.equal(original, images(8))


def test_the_draws_follow_the_images_to_their_device() -> None:
    assert crop_and_flip(images(8).to("meta"), generator()).is_meta
