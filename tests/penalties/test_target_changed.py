"""A weight or a target that changes: in a schedule, by hand, or when training is resumed."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import jacnorm as jn


def one_layer():
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def train(penalty, net, steps, rate=0.1):
    """The loss pulls the weights to where they began, so that the norm can be moved."""
    optimizer = torch.optim.SGD(net.parameters(), rate)
    start = one_layer().weight.detach()
    for _ in range(steps):
        optimizer.zero_grad()
        J = jn.linearize(net, torch.randn(4, 4))
        ((net.weight - start).square().sum() + penalty(J)).backward()
        optimizer.step()
    return torch.linalg.matrix_norm(net.weight.detach(), 2).item()


class Keeping(nn.Module):
    """x beside a multiple of x: σ is never below 1."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return torch.cat([x, self.factor * x], 1)


def keep(penalty, net, steps):
    """The loss pulls the factor to 3. Returns σ."""
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        J = jn.linearize(net, torch.randn(4, 2))
        ((net.factor - 3).square() + penalty(J)).backward()
        optimizer.step()
    return math.hypot(1, net.factor.item())


def with_a_ceiling(net):
    """A penalty that has found that its target cannot be reached."""
    penalty = jn.AnalyticPenalty(0.1, target=0.5)
    with pytest.warns(UserWarning, match="is not reached"):
        keep(penalty, net, 1500)
    assert math.isfinite(penalty.steering.state.ceiling)
    return penalty


def test_a_ceiling_belongs_to_its_target():
    """With the same target it is kept when training is resumed; with another one it is not."""
    old = with_a_ceiling(Keeping())
    same, other = (jn.AnalyticPenalty(0.1, target=target) for target in (0.5, 2.0))
    by_quantile = jn.AnalyticPenalty(0.1, target=0.5, target_quantile=0.9)
    for penalty in (same, other, by_quantile):
        penalty.load_state_dict(old.state_dict())
        assert penalty.weight == old.weight
    assert same.steering.state == old.steering.state
    assert (other.target, by_quantile.target, by_quantile.target_quantile) == (2.0, 0.5, 0.9)
    assert other.steering.state.ceiling == by_quantile.steering.state.ceiling == math.inf
    assert other.steering.state.norm == old.steering.state.norm  # it belongs to the network
    again = jn.AnalyticPenalty(0.1, target=0.5)
    again.load_state_dict(other.state_dict())  # and back
    assert again.steering.state.ceiling == math.inf


def test_a_resumed_training_reaches_its_new_target():
    """It needs a larger weight than the old target's ceiling."""
    net = Keeping()
    old = with_a_ceiling(net)
    penalty = jn.AnalyticPenalty(0.1, target=1.03)
    penalty.load_state_dict(old.state_dict())
    assert keep(penalty, net, 3000) == pytest.approx(1.03, rel=0.01)
    assert penalty.weight > old.steering.state.ceiling


def test_a_state_from_before_targets_were_saved():
    old = with_a_ceiling(Keeping())
    state = old.state_dict()
    state["_extra_state"] = state["_extra_state"][:-2]
    new = jn.AnalyticPenalty(0.1, target=0.5)
    new.load_state_dict(state)
    assert new.steering.state == old.steering.state


def test_a_target_that_is_set_takes_effect():
    penalty, net = jn.AnalyticPenalty(0.1, target=1.0), one_layer()
    train(penalty, net, 50)
    penalty.target = 0.3
    assert penalty.target == 0.3
    assert "target=0.3" in repr(penalty)
    assert train(penalty, net, 2000) == pytest.approx(0.3, rel=0.05)
    penalty.target = 0.6
    assert train(penalty, net, 2000) == pytest.approx(0.6, rel=0.05)


def test_a_target_that_is_set_lifts_the_ceiling_of_the_old_one():
    penalty = with_a_ceiling(Keeping())
    penalty.target = 0.5  # the same
    assert math.isfinite(penalty.steering.state.ceiling)
    penalty.target = 2.0
    assert penalty.steering.state.ceiling == math.inf


def test_a_weight_becomes_a_target_and_a_target_a_weight():
    penalty, net = jn.AnalyticPenalty(0.1), one_layer()
    assert penalty.target is None
    train(penalty, net, 5)
    penalty.target, penalty.target_quantile = 0.4, 0.9
    assert train(penalty, net, 2000) == pytest.approx(0.4, rel=0.05)
    penalty.target = None
    assert penalty.target_quantile is None
    weight = penalty.weight
    train(penalty, net, 5)
    assert penalty.weight == weight


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: setattr(jn.SpectralPenalty(target=1), "target", -1), "target=-1: a norm to aim for"),
        (lambda: setattr(jn.SpectralPenalty(), "target", "x"), "target='x': a norm to aim for"),
        (lambda: setattr(jn.SpectralPenalty(), "target_quantile", 0.9), "give target=, too"),
        (lambda: setattr(jn.SpectralPenalty(target=1), "target_quantile", 2), "it must lie between"),
        (lambda: setattr(jn.SpectralPenalty(reduction="max"), "target", 1), "not reduction='max'"),
        (lambda: setattr(jn.SpectralPenalty(0), "target", 1), "weight=0 with a target"),
        (lambda: setattr(jn.FrobeniusPenalty(target=1), "target_quantile", 0.9), "projections='all'"),
        (lambda: setattr(jn.TracePenalty(), "target", 1), "TracePenalty takes no target=: a trace may"),
        (lambda: setattr(jn.MarginPenalty(), "target", 1), "MarginPenalty takes no target=: of radii"),
    ],
)
def test_a_target_is_checked_as_the_constructors(make, message):
    with pytest.raises(jn.InputError, match=message):
        make()


PENALTIES = [
    jn.SpectralPenalty, jn.FrobeniusPenalty, jn.SpectralBoundPenalty, jn.WeightDecay, jn.AnalyticPenalty,
    jn.MarginPenalty, jn.GradientPenalty, jn.SchattenPenalty, lambda w: jn.NuclearBoundPenalty(w, at="1"),
    jn.InducedPenalty, jn.TracePenalty, jn.SpectralRadiusPenalty,
]  # fmt: skip


@pytest.mark.parametrize("make", PENALTIES)
@pytest.mark.parametrize(
    "weight", [-1, float("nan"), float("inf"), "x", None, torch.tensor(0.1), 1j], ids=repr
)
def test_a_weight_is_checked_as_the_constructors(make, weight):
    with pytest.raises(jn.InputError) as at_first:
        make(weight)
    penalty = make(0.5)
    with pytest.raises(jn.InputError, match="it must be a finite number, zero or more") as later:
        penalty.weight = weight
    assert str(later.value) == str(at_first.value)
    assert penalty.weight == 0.5


def test_a_schedule_sets_the_weight():
    penalty, net = jn.AnalyticPenalty(0.0), one_layer()
    x = torch.randn(5, 4)
    sigma = torch.linalg.matrix_norm(net.weight.detach(), 2).item()
    for weight in (0, 0.1, np.float32(0.5), np.float64(0.25), 0):
        penalty.weight = weight
        assert penalty(jn.linearize(net, x)).item() == pytest.approx(weight * sigma)
    again = pickle.loads(pickle.dumps(copy.deepcopy(penalty)))
    again.weight = 0.2
    assert again(jn.linearize(net, x)).item() == pytest.approx(0.2 * sigma)


def two_networks(penalty, steps, first, second, rate=0.05):
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], rate)
    for _ in range(steps):
        optimizer.zero_grad()
        for net in (first, second):
            penalty(jn.linearize(net, torch.randn(4, 4))).backward()
        optimizer.step()


def test_a_target_for_two_networks_in_turn_is_refused():
    with pytest.raises(jn.InputError, match=r"two networks use it in turn.*Make a penalty for each network"):
        two_networks(jn.AnalyticPenalty(0.1, target=0.5), 2, one_layer(), one_layer())
    two_networks(jn.AnalyticPenalty(0.1), 2, one_layer(), one_layer())  # without a target they may share


def test_one_network_after_the_other_is_no_turn():
    """Nor is looking at another network."""
    penalty, looked_at = jn.AnalyticPenalty(0.1, target=0.5), one_layer()
    for net in (one_layer(), one_layer()):
        train(penalty, net, 10)
        with torch.no_grad():
            penalty(jn.linearize(looked_at, torch.randn(4, 4)))
    assert penalty.steering.state.steps == 19


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 2)


def test_two_heads_of_one_network_are_one_step():
    net, penalty = TwoHeads(), jn.AnalyticPenalty(0.1, target=0.5)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    body, heads = net.body, (net.a, net.b)
    for step in range(5):
        optimizer.zero_grad()
        for head in heads:
            penalty(jn.linearize(nn.Sequential(body, head), torch.randn(4, 4))).backward()
            assert penalty.steering.state.steps == max(0, step)
        optimizer.step()
