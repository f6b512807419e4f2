"""What a penalty says of itself, beside dense Jacobians; and that a look changes nothing."""

import copy

import pytest
import torch
import torch.nn.functional as F
from cases import LENET, SMALL
from oracles import dense, gradient, mean_sigma, mean_square
from torch import nn

import jacnorm as jn


def network():
    torch.manual_seed(0)
    layers = nn.Linear(6, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Dropout(0.5), nn.Linear(20, 8)
    return nn.Sequential(*layers).double()


X = torch.randn(
    12, 6, dtype=torch.float64, generator=torch.Generator(torch.get_default_device()).manual_seed(1)
)


@pytest.mark.parametrize("options", [{}, {"start": "random"}, {"iterations": 3}, {"h": "square"}])
def test_against_the_dense_jacobian(options):
    model, x = LENET.make()
    penalty = jn.SpectralPenalty(0.3, **options)
    J = jn.linearize(model, x)
    report = penalty.report(J, loss=torch.tensor(2.0), samples=len(x))
    value = penalty(J)  # with the same draws
    D = dense(model, x)
    curve = torch.square if "h" in options else lambda s: s
    exact = 0.3 * curve(torch.linalg.matrix_norm(D, 2)).mean()
    assert report.measured == pytest.approx(mean_sigma(D).item(), rel=1e-5)
    assert report.estimated == pytest.approx(penalty.norms.mean().item(), rel=1e-9)
    assert report.error == pytest.approx(report.estimated / report.measured - 1)
    expected = F.cosine_similarity(gradient(value, model), gradient(exact, model), dim=0)
    assert report.cosine == pytest.approx(expected.item(), abs=1e-4)
    assert report.share == pytest.approx(value.item() / (value.item() + 2), rel=1e-6)
    assert report.samples == len(x)
    assert "estimated" in str(report)
    assert report.products == 2 * penalty.iterations + 1  # for the start, or after it
    assert set(report.numbers()) == {"estimated", "measured", "error", "cosine", "products", "share"}


@pytest.mark.parametrize(
    ("make", "norm"),
    [
        (lambda: jn.FrobeniusPenalty(0.3), mean_square),
        (lambda: jn.FrobeniusPenalty(0.3, 2, h="square"), mean_square),
        (lambda: jn.SchattenPenalty(0.3, 2), lambda D: torch.linalg.matrix_norm(D).mean()),
        (lambda: jn.SpectralPenalty(0.3, reduction="none"), mean_sigma),
        (lambda: jn.SpectralPenalty(0.3, reduction="max", h="hinge", threshold=0.1), mean_sigma),
        (lambda: jn.SpectralPenalty(0.3, reduction="sum"), mean_sigma),
    ],
)
def test_other_norms_and_sums(make, norm):
    model, x = SMALL.make()
    report = make().report(jn.linearize(model, x))
    assert report.measured == pytest.approx(norm(dense(model, x)).item(), rel=1e-4)
    assert 0 < report.cosine <= 1 + 1e-9


def test_a_trace():
    model, x = nn.Linear(5, 5).double(), torch.randn(3, 5, dtype=torch.float64)
    report = jn.TracePenalty(1.0).report(jn.linearize(model, x))
    assert report.measured == pytest.approx(model.weight.trace().item())
    assert report.estimated != report.measured


def test_margins_take_labels():
    model, x = SMALL.make()
    labels = model(x).argmax(1)
    J = jn.linearize(model, x)
    report = jn.MarginPenalty(1.0, candidates=100).report(J, labels=labels)
    assert (report.error, report.cosine) == (0.0, pytest.approx(1))
    report = jn.MarginPenalty(1.0).report(
        J, labels=labels
    )  # of the runner-up alone, which may not be nearest
    assert report.error >= 0
    assert report.measured == pytest.approx(
        jn.MarginPenalty(1.0, candidates=100).report(J, labels=labels).measured
    )
    for penalty in (jn.MarginPenalty(1.0), jn.GradientPenalty(1.0)):
        with pytest.raises(jn.InputError, match="needs the labels of these samples"):
            penalty.report(J)


@pytest.mark.parametrize("index", [None, torch.arange(12)])
def test_a_look_changes_nothing(index):
    model, penalty = network(), jn.SpectralPenalty(0.3, start="random")
    for _ in range(3):
        penalty(jn.linearize(model, X), index=index).backward()
    vectors, before = copy.deepcopy(penalty.state_dict()), [copy.deepcopy(p.grad) for p in model.parameters()]
    J, random = jn.linearize(model, X), torch.get_rng_state()
    state = copy.deepcopy(model.state_dict())
    norms = penalty.norms
    penalty.report(J, index, samples=5)
    assert penalty.norms is norms
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    torch.testing.assert_close(penalty.state_dict(), vectors, rtol=0, atol=0)
    torch.testing.assert_close([p.grad for p in model.parameters()], before, rtol=0, atol=0)
    penalty(J, index=index).backward()  # J still serves


def test_the_cost_is_known_after_both_kinds_of_steps():
    model, x = LENET.make()
    penalty = jn.SpectralPenalty(0.3, every=2)
    J = jn.linearize(model, x)
    assert penalty.report(J).cost is None
    for _ in range(12):
        J = penalty.linearize(model, x)
        (J.output.sum() + penalty(J)).backward()
    while isinstance(J := penalty.linearize(model, x), jn.penalties.base.Unrecorded):
        pass
    report = penalty.report(J)
    assert report.cost > 1
    assert "one that does not" in str(report)


def test_gradients_of_zero_agree():
    model, x = SMALL.make()
    report = jn.SpectralPenalty(1.0, h="hinge", threshold=1e6).report(jn.linearize(model, x))
    assert report.cosine == 1


def test_nothing_of_nothing_and_a_norm_of_zero():
    """Numbers that cannot be told are not told."""
    model, x = SMALL.make()
    idle = jn.SpectralPenalty(1.0, h="hinge", threshold=1e6).report(jn.linearize(model, x), loss=0.0)
    assert idle.share is None
    turn = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        turn.weight.copy_(torch.tensor([[0.0, 1.0], [-2.0, 0.0]]))
    report = jn.TracePenalty(1.0).report(jn.linearize(turn, torch.randn(3, 2).double()))
    assert report.measured == 0 != report.estimated
    assert "error" not in report.numbers()
    assert "measured on 3 samples" in str(report)


@pytest.mark.parametrize("make", [jn.FrobeniusPenalty, jn.TracePenalty])
def test_of_many_outputs_some_directions_are_enough(make):
    """A product for each of a million outputs would never end."""
    torch.manual_seed(0)
    model, x = nn.Conv2d(1, 1, 3, padding=1).double(), torch.randn(2, 1, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        model.weight[0, 0, 1, 1] = 2.0
    D = dense(model, x)
    exact = mean_square(D) if make is jn.FrobeniusPenalty else D.diagonal(dim1=1, dim2=2).sum(1).mean()
    J = jn.linearize(model, x)
    report = make(1.0).report(J)
    assert report.measured == pytest.approx(exact.item(), rel=0.05)
    assert report.measured != pytest.approx(exact.item(), rel=1e-9)
    assert make(1.0, "all").report(J).estimated == pytest.approx(exact.item())


def test_a_radius_is_measured_in_a_larger_space():
    torch.manual_seed(0)
    model, x = nn.Linear(80, 80).double(), torch.randn(2, 80).double()
    report = jn.SpectralRadiusPenalty(1.0, max_iterations=4).report(jn.linearize(model, x))
    exact = torch.linalg.eigvals(model.weight).abs().max().item()
    assert report.measured == pytest.approx(exact)
    assert abs(report.error) > 0.01


def test_a_hinge_that_sees_too_little_has_no_gradient():
    model, x = LENET.make()
    J = jn.linearize(model, x[:1])
    low = jn.SpectralPenalty(1.0)(J).item()
    threshold = (low + mean_sigma(dense(model, x[:1])).item()) / 2
    assert jn.SpectralPenalty(1.0, h="hinge", threshold=threshold).report(J).cosine == 0


def test_mistakes():
    model, x = SMALL.make()
    with pytest.raises(jn.InputError, match="The weight is 0"):
        jn.SpectralPenalty(0.0).report(jn.linearize(model, x))
    with pytest.raises(jn.InputError, match="samples=0"):
        jn.SpectralPenalty(1.0).report(jn.linearize(model, x), samples=0)
    lazy = jn.SpectralPenalty(1.0, every=2)
    lazy.linearize(model, x)
    with pytest.raises(jn.InputError, match="pays nothing in this step"):
        lazy.report(lazy.linearize(model, x))
