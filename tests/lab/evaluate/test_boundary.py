"""Known distances: exact ones for linear classifiers, and brute force for a net of two pixels."""

import math

import pytest
import torch
from torch import nn

from jacnorm.lab.data import Split
from jacnorm.lab.evaluate import EvaluationError, boundary
from jacnorm.lab.evaluate.boundary import (
    FIRST_RADIUS,
    RESOLUTION,
    first_order_distance,
    sampled_distance,
    unit_rays,
)
from jacnorm.lab.evaluate.minimum_norm import l2_distance


def test_first_order_and_attack_are_exact_on_a_linear_classifier(linear_three):
    t = linear_three
    torch.testing.assert_close(first_order_distance(t.model, t.images), t.exact, rtol=1e-4, atol=1e-5)
    attack = l2_distance(t.model, t.images, t.labels)
    assert (attack >= t.exact * 0.999).all()
    assert (attack <= t.exact * 1.02 + 1e-4).all()
    assert all(p.grad is None for p in t.model.parameters())


def test_sampled_distance_is_that_of_the_first_ray_to_leave(linear_three):
    """Along a ray the gap to class k closes at a known rate. So the exact radius is known."""
    t = linear_three
    found = sampled_distance(t.model, t.images, directions=40, seed=3)
    rays = unit_rays(t.images, 40, torch.Generator().manual_seed(3)).flatten(2).double()
    closing = -torch.einsum("nkp,ndp->ndk", t.normals, rays)
    radii = torch.where(closing > 0, t.gaps[:, None] / closing, torch.inf)
    radii = radii.scatter(2, t.labels[:, None, None].expand(-1, 40, 1), torch.inf)
    exact = radii.amin((1, 2)).float()
    assert (found >= exact * 0.999).all()
    assert (found <= exact * (1 + RESOLUTION) + FIRST_RADIUS * RESOLUTION + 1e-5).all()
    assert (found > t.exact).all()


def plane():
    """A net of two pixels whose three regions have many corners."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(17)
        body = nn.Sequential(nn.Flatten(), nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 3))
        body[1].weight.mul_(4)
        body[1].bias.copy_(-body[1].weight.sum(1) / 2 + 0.2 * torch.randn(12))
        body[3].bias.sub_(body(torch.rand(100, 1, 1, 2)).mean(0))
    return body.eval()


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def brute_force(model, points, reach, step=0.002):
    """The nearest point of another class on a fine polar grid."""
    angles = torch.arange(720) * (2 * math.pi / 720)
    radii = torch.arange(step, reach, step)
    circle = torch.stack([angles.cos(), angles.sin()], 1)
    grid = (radii[:, None, None] * circle).reshape(-1, 1, 1, 2)
    found = []
    for point in points:
        outside = model(point + grid).argmax(1) != model(point[None]).argmax(1)
        found.append(radii[outside.view(len(radii), -1).any(1)][:1])
    return torch.cat(found)


@torch.no_grad()
def test_a_two_dimensional_net_by_brute_force():
    model = plane()
    points = torch.rand(12, 1, 1, 2, generator=seeded(0))
    labels = model(points).argmax(1)
    assert len(labels.unique()) == 3
    exact = brute_force(model, points, reach=3.0)
    assert len(exact) == 12
    sampled = sampled_distance(model, points, directions=400, seed=0)
    with torch.enable_grad():
        attack = l2_distance(model, points, labels)
    torch.testing.assert_close(sampled, exact, rtol=0.015, atol=0.004)
    assert (attack >= exact - 0.004).all()
    assert ((attack - exact).abs() < 0.02 * exact + 0.004).float().mean() > 0.9


def test_no_boundary_within_reach():
    constant = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        constant[1].weight.zero_()
        constant[1].bias.copy_(torch.tensor([1.0, 0.0]))
    split = Split(torch.rand(3, 1, 2, 2, generator=seeded(0)), torch.zeros(3, dtype=torch.int64))
    r = boundary(constant, split, directions=5)
    assert r.first_order == r.attack == r.sampled == (None, None, None)


def test_misclassified_points_are_left_out_and_counted(trained, few):
    with torch.no_grad():
        right = trained(few.images).argmax(1) == few.labels
    first, second = right.nonzero()[:2, 0].tolist()
    flipped = few.labels.clone()
    flipped[first] = (flipped[first] + 1) % 10
    r = boundary(trained, Split(few.images, flipped), directions=8)
    expected = int((~right).sum()) + 1
    assert r.left_out == expected
    assert first not in r.points
    assert second in r.points
    assert len(r.sampled) == len(r.attack) == len(r.first_order) == len(few) - expected
    assert r.directions == 8


def test_points_are_those_that_every_network_gets_right(trained, few):
    class Other(nn.Module):
        """It classifies only class 3 correctly."""

        def forward(self, images):
            return torch.eye(10)[3].expand(len(images), 10) + 0 * images.sum()

    r = boundary(trained, few, compared_with=[Other()], directions=2)
    assert {int(few.labels[i]) for i in r.points} == {3}
    with pytest.raises(EvaluationError, match=r"none of these .* images is classified correctly by every"):
        boundary(trained, few.take((few.labels != 3).nonzero()[:, 0]), compared_with=[Other()])


def test_more_directions_come_nearer_and_never_nearer_than_the_attack(trained, few):
    one, many = (boundary(trained, few, directions=d) for d in (2, 100))
    assert sum(many.sampled) < 0.8 * sum(one.sampled)
    assert all(s >= a for s, a in zip(many.sampled, many.attack, strict=True))


def test_bad_directions(trained, few):
    with pytest.raises(EvaluationError, match="directions = 0"):
        boundary(trained, few, directions=0)


def test_without_foolbox(trained, few, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "foolbox", None)
    with pytest.raises(EvaluationError, match=r"need foolbox .*: pip install"):
        boundary(trained, few, directions=2)
