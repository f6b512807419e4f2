"""Our attacks are those of torchattacks 3.5.1: `make test` installs it, without what it depends on."""

import math
from itertools import islice

import pytest
import torch
from torch import nn

from jacnorm.lab.attacks import apgd_ce, apgd_targeted, pgd, square, tpgd
from jacnorm.lab.attacks.square import _side

EPSILON, STEP = 32 / 255, 2 / 255


@pytest.fixture(scope="module")
def torchattacks():
    try:
        import torchattacks
    except ImportError as error:
        pytest.fail(f"{error}: pip install --no-deps torchattacks==3.5.1 (it needs scipy and requests)")
    return torchattacks


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def theirs(attack, few, seed):
    """The result of torchattacks. It draws from the global state, which is restored."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return attack(few.images, few.labels)


def fooled(model, images, labels):
    with torch.no_grad():
        return model(images).argmax(1) != labels


@pytest.mark.parametrize("iterations", [1, 3, 20])
@pytest.mark.parametrize(("ours", "name"), [(pgd, "PGD"), (tpgd, "TPGD")])
def test_the_same_images_from_the_same_start(ours, name, iterations, torchattacks, trained, few):
    attack = getattr(torchattacks, name)(trained, eps=EPSILON, alpha=STEP, steps=iterations)
    iterates = ours(trained, few.images, few.labels, epsilon=EPSILON, step_size=STEP, generator=seeded(7))
    *_, (images, logits) = islice(iterates, iterations + 1)
    assert torch.equal(images, theirs(attack, few, 7))
    with torch.no_grad():
        assert torch.equal(logits, trained(images))
    assert not torch.equal(images, theirs(attack, few, 8))


@pytest.mark.parametrize("iterations", [5, 40, 150])
def test_square_succeeds_as_often(iterations, torchattacks, trained, few):
    seeds = range(10)
    rates = torch.empty(2, len(seeds))
    for seed in seeds:
        attack = torchattacks.Square(trained, eps=16 / 255, n_queries=iterations, seed=seed)
        found = square(
            trained, few.images, few.labels, epsilon=16 / 255, iterations=iterations, generator=seeded(seed)
        )
        for row, images in zip(rates, (theirs(attack, few, 0), found), strict=True):
            row[seed] = fooled(trained, images, few.labels).float().mean()
    error = (rates.var(1).sum() / len(seeds)).sqrt()
    assert rates[1].std() > 0
    assert abs(rates[0].mean() - rates[1].mean()) < 3 * error + 0.002


def test_squares_shrink_on_the_same_schedule(torchattacks, trained):
    images = torch.zeros(1, 3, 28, 28)
    for iterations in (7, 100, 5000):
        attack = torchattacks.Square(trained, n_queries=iterations)
        for i in range(iterations):
            theirs = max(round(math.sqrt(attack.p_selection(i) * 28 * 28)), 1)
            assert _side(i, iterations, images) == theirs


class Watched(nn.Module):
    """A network that remembers each batch."""

    def __init__(self, model):
        super().__init__()
        self.model, self.seen = model, []

    def forward(self, images):
        self.seen.append(images.detach().clone())
        return self.model(images)


def test_apgd_asks_about_the_same_images(torchattacks, trained, few):
    """Step by step, as long as no image is fooled. Ours stops attacking a fooled image."""
    radius = 4 / 255
    attack = torchattacks.APGD(trained, eps=radius, steps=30, seed=0)
    stands = few.take((~fooled(trained, theirs(attack, few, 0), few.labels)).nonzero()[:, 0])
    reference, watched = Watched(trained), Watched(trained)
    theirs(torchattacks.APGD(reference.eval(), eps=radius, steps=30, seed=1), stands, 0)
    apgd_ce(watched, stands.images, stands.labels, epsilon=radius, iterations=30, generator=seeded(1))
    assert len(watched.seen) == 31
    for ours, expected in zip(watched.seen, reference.seen[-31:], strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("ours", "name"), [(apgd_ce, "APGD"), (apgd_targeted, "APGDT")])
def test_apgd_fools_the_same_images(ours, name, torchattacks, trained, few):
    attack = getattr(torchattacks, name)(trained, eps=16 / 255, steps=30, seed=0)
    images = ours(trained, few.images, few.labels, epsilon=16 / 255, iterations=30, generator=seeded(0))
    assert (images - few.images).abs().max() <= 16 / 255 + 1e-6
    assert 0 <= images.min() <= images.max() <= 1
    reference = fooled(trained, theirs(attack, few, 0), few.labels)
    assert reference.float().mean() > 0.15
    different = fooled(trained, images, few.labels) != reference
    assert different.sum() <= 2
