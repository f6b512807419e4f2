"""The judge is at least as hard as its parts, and knows when gradients are masked."""

import pytest
import torch
from torch import nn

from jacnorm.lab.evaluate import EvaluationError, adversarial, judge


class Masked(nn.Module):
    """The same decisions on coarse pixels; rounding has no gradient."""

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
    """A point falls to ε in the ∞-norm exactly when some gap is below ε times the 1-norm of the normal."""
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
