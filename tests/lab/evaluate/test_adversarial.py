"""Attacks get stronger with ε and iterations, and do nothing at ε = 0."""

import pytest
import torch
from torch import nn

from jacnorm.lab.attacks import apgd_ce, apgd_targeted, square
from jacnorm.lab.data import Split
from jacnorm.lab.evaluate import EvaluationError, adversarial
from jacnorm.lab.evaluate.adversarial import ATTACKS

EPSILONS = (0.0, 4 / 255, 16 / 255, 32 / 255)
STRENGTHS = {"pgd": (0, 1, 3, 10, 25), "tpgd": (0, 1, 3, 10, 25), "square": (0, 5, 20, 60)}


@pytest.fixture(scope="module")
def results(trained, few):
    return {
        name: adversarial(trained, few, name, epsilons=EPSILONS, iterations=STRENGTHS[name])
        for name in ATTACKS
    }


@pytest.mark.parametrize("name", ATTACKS)
def test_success_never_falls(name, results):
    worst = torch.tensor(results[name].worst)
    assert (worst.diff(dim=0) <= 0).all()
    assert (worst.diff(dim=1) <= 0).all()
    assert worst[-1, -1] < worst[0, 0] - 0.15


@pytest.mark.parametrize("name", ATTACKS)
def test_no_radius_or_no_iterations_is_clean(name, results, trained, few):
    with torch.no_grad():
        clean = float((trained(few.images).argmax(1) == few.labels).double().mean())
    r = results[name]
    assert r.clean == clean
    assert set(r.last[0]) == set(r.worst[0]) == {clean}
    assert {row[0] for row in (*r.last, *r.worst)} == {clean}


@pytest.mark.parametrize("name", ATTACKS)
def test_worst_counts_what_the_last_iterate_misses(name, results):
    """A run at one ε alone is below its own last iterates as well, and near the run over all ε."""
    r = results[name]
    assert (torch.tensor(r.worst) <= torch.tensor(r.last)).all()
    assert (torch.tensor(r.last) - torch.tensor(r.worst)).max() < 0.05


class Pit(nn.Module):
    """It is wrong only near p = 0.52. From 0.56 on the loss rises with p, away from there."""

    def forward(self, images):
        p = images.mean((1, 2, 3))
        margin = torch.where(p < 0.56, 100 * ((p - 0.52) ** 2 - 1e-4), 1 - p)
        return torch.stack([margin, torch.zeros_like(margin)], 1)


def test_what_a_smaller_radius_found_counts_for_a_larger_one():
    split = Split(torch.full((60, 1, 1, 1), 0.5), torch.zeros(60, dtype=torch.int64))
    r = adversarial(Pit(), split, "pgd", epsilons=(0.02, 0.3), iterations=(10,))
    assert r.last[0] == (0.0,)
    assert r.last[1][0] > 0.2
    assert r.worst == ((0.0,), (0.0,))


def test_tpgd_puts_mistakes_right_in_its_last_iterate_only(trained, few):
    """It moves away from the prediction, even a wrong one. So `last` may rise, and `worst` does not."""
    with torch.no_grad():
        wrong = (trained(few.images).argmax(1) != few.labels).nonzero()[:, 0]
    assert len(wrong) > 0
    r = adversarial(trained, few.take(wrong), "tpgd", iterations=(0, 20))
    assert r.last[0][1] > 0
    assert r.worst == ((0.0, 0.0),)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_seed_repeats_itself_and_the_global_state_stays(name, trained, few):
    state = torch.get_rng_state()
    runs = [adversarial(trained, few, name, iterations=(3,), seed=seed) for seed in (0, 0)]
    assert runs[0] == runs[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in trained.parameters())


@pytest.mark.parametrize("attack", [apgd_ce, apgd_targeted, square])
def test_images_that_stand_come_back_as_they_are(attack, trained, few):
    def run(epsilon):
        generator = torch.Generator().manual_seed(0)
        return attack(trained, few.images, few.labels, epsilon=epsilon, iterations=10, generator=generator)

    assert torch.equal(run(0.0), few.images)
    found = run(32 / 255)
    changed = (found != few.images).flatten(1).any(1)
    with torch.no_grad():
        fooled = trained(found).argmax(1) != few.labels
    assert changed.any()
    assert fooled[changed].all()


def test_bad_options(trained, few):
    with pytest.raises(EvaluationError, match="there is no attack 'fgsm'"):
        adversarial(trained, few, "fgsm")
    with pytest.raises(EvaluationError, match="in rising order"):
        adversarial(trained, few, "pgd", iterations=(5, 1))
    with pytest.raises(EvaluationError, match="epsilons"):
        adversarial(trained, few, "pgd", epsilons=(-0.1,))
