"""The judge is at least as strict as each of its attacks, and it notices masked gradients."""

import pytest
import torch
from torch import nn

from jacnorm.lab.attacks.square import _squares
from jacnorm.lab.evaluate import EvaluationError, adversarial, judge
from jacnorm.lab.evaluate.minimum_norm import linf_perturbed


class Masked(nn.Module):
    """The same decisions on rounded pixels. Rounding has no gradient."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model((8 * images).round() / 8)


def test_worst_case_over_attacks(trained, few):
    r = judge(trained, few, epsilon=16 / 255, iterations=30, queries=100)
    assert r.attacks == ("apgd-ce", "apgd-t", "fmn", "square")
    assert r.clean >= r.robust[0] >= r.robust[1] >= r.robust[2] >= r.robust[3] > 0
    assert r.alarm is None
    for name in ("pgd", "square"):
        weaker = adversarial(trained, few, name, epsilons=(16 / 255,), iterations=(40,))
        assert r.robust[-1] <= weaker.worst[0][0]
    assert judge(trained, few, epsilon=0.0, iterations=2, queries=2).robust == (r.clean,) * 4


def test_the_exact_robust_accuracy_of_a_linear_classifier(linear_three):
    """An attack in the ∞-norm succeeds exactly if some gap is below ε times the 1-norm of the normal."""
    from jacnorm.lab.data import Split

    t = linear_three
    radius = (t.gaps / t.normals.abs().sum(2)).scatter(1, t.labels[:, None], torch.inf).amin(1)
    epsilon = float(radius.median()) + 1e-4
    assert ((radius - epsilon).abs() > 5e-5).all()
    r = judge(t.model, Split(t.images, t.labels), epsilon=epsilon, iterations=50, queries=20)
    assert r.robust[1] == float((radius > epsilon).double().mean())


def test_the_alarm_on_masked_gradients(trained, few):
    r = judge(Masked(trained), few, iterations=5, queries=200)
    assert r.only_by_square > 20
    assert r.zero_gradients == len(few)
    assert "gradients may be masked" in r.alarm
    assert f"Square, which sees no gradient, fooled {r.only_by_square} images" in r.alarm


def test_the_global_state_stays(trained, few):
    state = torch.get_rng_state()
    r = judge(trained, few, iterations=3, queries=3)
    assert torch.equal(torch.get_rng_state(), state)
    assert r == judge(trained, few, iterations=3, queries=3)
    assert all(p.grad is None for p in trained.parameters())


def test_bad_options(trained, few):
    with pytest.raises(EvaluationError, match=r"epsilon = -0\.1"):
        judge(trained, few, epsilon=-0.1)


def test_the_minimum_norm_attack_finds_the_exact_radius_of_a_linear_classifier(linear_three):
    """In the ∞-norm the distance to a hyperplane is the gap divided by the 1-norm of its normal."""
    t = linear_three
    exact = (t.gaps / t.normals.abs().sum(2)).scatter(1, t.labels[:, None], torch.inf).amin(1)
    found = linf_perturbed(t.model, t.images, t.labels, steps=100)
    radius = (found - t.images).abs().amax((1, 2, 3))
    with torch.no_grad():
        fooled = t.model(found).argmax(1) != t.labels
    assert fooled.float().mean() > 0.9  # it ends on the boundary, so rounding decides
    assert (radius >= exact * (1 - 1e-4))[fooled].all()
    assert float((radius / exact)[fooled].median()) < 1.1


@pytest.mark.parametrize("whole_image", [True, False])
def test_squares_reach_the_last_row_and_column_only_in_the_judge(whole_image):
    images = torch.zeros(4000, 1, 6, 6)
    hit = _squares(images, 3, whole_image, torch.Generator().manual_seed(0)).abs().sum((0, 1)) > 0
    assert hit[:5, :5].all()
    assert hit[5, :].any() == hit[:, 5].any() == whole_image
