"""Without index=: the start from recent samples, Krylov rounds, rounds as needed, and the word of warning."""

import warnings

import pytest
import torch
from cases import LENET
from oracles import dense, mean_sigma
from torch import nn

import jacnorm as jn
from jacnorm.penalties import spectral


def low(penalty, model, x):
    """By how much σ is underestimated."""
    return 1 - float(penalty(jn.linearize(model, x)).detach() / mean_sigma(dense(model, x)).detach())


def batches(count):
    """Of a kind: new samples, close to others of the same kind."""
    torch.manual_seed(2)
    centers = torch.randn(3, 1, 28, 28, dtype=torch.float64)
    return [centers[torch.randint(3, (8,))] + 0.05 * torch.randn(8, 1, 28, 28).double() for _ in range(count)]


def test_new_samples_gain_by_those_before():
    model, _ = LENET.make()
    penalty, xs = jn.SpectralPenalty(1.0), batches(20)
    errors = [low(penalty, model, x) for x in xs]
    assert errors[0] == pytest.approx(low(jn.SpectralPenalty(1.0, start="output"), model, xs[0]))
    assert max(errors[-5:]) < errors[0] / 2


def test_signs_do_not_matter():
    """Half of the stored vectors turned round: the same start."""
    model, _ = LENET.make()
    penalty, xs = jn.SpectralPenalty(1.0), batches(3)
    for x in xs[:2]:
        penalty(jn.linearize(model, x))
    J = jn.linearize(model, xs[2])
    before, known = penalty.recent.guess(J)
    assert known.all()
    penalty.recent.u[::2] *= -1
    after, _ = penalty.recent.guess(J)
    torch.testing.assert_close((before * after).sum(1).abs(), torch.ones(8, dtype=torch.float64))


def test_the_oldest_go(monkeypatch):
    monkeypatch.setattr("jacnorm.penalties.recent.MOST", 4)
    net, penalty = nn.Linear(3, 2), jn.SpectralPenalty(1.0)
    for count in (3, 3, 7):
        penalty(jn.linearize(net, torch.randn(count, 3)))
        assert penalty.recent.u.shape == penalty.recent.outputs.shape == (4, 2)
    assert penalty.recent.u.any(1).all()


def test_large_outputs_are_few():
    net, penalty = nn.Conv2d(1, 1, 1), jn.SpectralPenalty(1.0)
    penalty(jn.linearize(net, torch.randn(2, 1, 512, 1024)))
    assert penalty.recent.u.numel() + penalty.recent.outputs.numel() <= 2**22


@pytest.mark.parametrize("iterations", [2, 3, 5])
@pytest.mark.parametrize("start", ["output", "random"])
def test_rounds_are_better_than_power_iteration(start, iterations):
    model, x = LENET.make()
    J = jn.linearize(model, x)
    ours, again = (jn.SpectralPenalty(1.0, n, start=start, seed=3) for n in (iterations, 1))
    u = again._first(J)
    for _ in range(iterations):
        v = torch.nn.functional.normalize(J.vjp(u).flatten(1)).view_as(x)
        w = J.jvp(v)
        u = torch.nn.functional.normalize(w)
    power, exact = w.norm(dim=1).mean(), mean_sigma(dense(model, x))
    found = ours(J)
    assert power * (1 - 1e-9) <= found <= exact * (1 + 1e-9)
    if iterations > 2:
        assert power * 1.001 < found


def test_as_many_rounds_as_needed():
    """The gap is as promised, and easy batches get one round."""
    model, x = LENET.make()
    J, found = jn.linearize(model, x), {}
    for tol in (0.9, 0.3, 0.03):
        rounds = []
        J.jvp = lambda *given, rounds=rounds: rounds.append(1) or type(J).jvp(J, *given)
        value = jn.SpectralPenalty(1.0, "auto", tol=tol, start="output")(J)
        found[tol] = len(rounds), float((mean_sigma(dense(model, x)) - value).detach())
    counts, errors = zip(*found.values(), strict=True)
    assert counts[0] == 1 < counts[1] < counts[2] <= 10
    assert errors[0] > errors[1] > errors[2]


def test_auto_has_the_gradient_of_as_many_rounds():
    model, x = LENET.make()
    J = jn.linearize(model, x)
    auto, ten = (jn.SpectralPenalty(1.0, n, tol=1e-9, start="output")(J) for n in ("auto", 10))
    torch.testing.assert_close(auto, ten)
    parameters = list(model.parameters())
    found, expected = (
        torch.autograd.grad(v, parameters, retain_graph=True, allow_unused=True) for v in (auto, ten)
    )
    torch.testing.assert_close(found, expected)


def far_from_scores():
    """Scores of size one in a direction that the input hardly moves, and a steep one beside it."""
    net = nn.Linear(4, 4, bias=True).double()
    with torch.no_grad():
        net.weight.copy_(torch.diag(torch.tensor([10.0, 9.9, 1.0, 1.0])))
        net.bias.copy_(torch.tensor([-1.0, -1.0, 2e3, -2e3]))
    return net


@pytest.fixture
def looks_early(monkeypatch):
    monkeypatch.setattr(spectral, "LOOKS", (2, 4))


@pytest.mark.usefixtures("looks_early")
def test_a_poor_start_is_told_once():
    net, x = far_from_scores(), torch.randn(3, 4).double()
    penalty = jn.SpectralPenalty(1.0, start="output")
    penalty(jn.linearize(net, x))
    with pytest.warns(UserWarning, match=r"too low.*index=.*iterations=2.*iterations='auto'.*report\(J\)"):
        penalty(jn.linearize(net, x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            penalty(jn.linearize(net, x))


@pytest.mark.usefixtures("looks_early")
@pytest.mark.parametrize("options", [{"iterations": 4}, {"iterations": "auto"}])
def test_a_good_one_is_not(options):
    net, x = far_from_scores(), torch.randn(3, 4).double()
    penalty = jn.SpectralPenalty(1.0, tol=0.05, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            penalty(jn.linearize(net, x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": "some"}, "iterations='some'"),
        ({"tol": 0}, "tol=0"),
        ({"start": "x"}, "recent, output"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(jn.InputError, match=message):
        jn.SpectralPenalty(**options)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("h", ["identity", "hinge", lambda s: (s - 1) ** 2], ids=["σ", "hinge", "two-sided"])
def test_one_number_needs_no_search(h, reduction):
    """A critic's σ is exact from the first step on, and its gradient, with one sweep each way."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    x = torch.randn(6, 5, dtype=torch.float64)
    penalty = jn.SpectralPenalty(0.3, h=h, threshold=0.2, reduction=reduction)
    value = penalty(jn.linearize(critic, x), index=torch.arange(6))
    found = torch.autograd.grad(value.sum(), list(critic.parameters()), allow_unused=True)
    sigma = dense(critic, x).flatten(1).norm(dim=1)
    curve = {"identity": lambda s: s, "hinge": lambda s: torch.relu(s - 0.2)}.get(h, h)
    exact = 0.3 * (curve(sigma).mean() if reduction == "mean" else curve(sigma))
    expected = torch.autograd.grad(exact.sum(), list(critic.parameters()), allow_unused=True)
    torch.testing.assert_close(value, exact)
    for ours, theirs in zip(found[:3], expected[:3], strict=True):  # σ does not depend on the last bias
        torch.testing.assert_close(ours, theirs)
    report = jn.SpectralPenalty(0.3, h=h, threshold=0.2).report(jn.linearize(critic, x))
    assert report.products == 2
    assert report.error == pytest.approx(0, abs=1e-12)
