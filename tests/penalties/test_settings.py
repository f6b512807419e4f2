"""Arguments nobody thought of: settings that change later, labels of other kinds, inference mode."""

import pytest
import torch
import torch.nn.functional as F
from oracles import mean_sigma
from torch import nn

import jacnorm as jn

F64 = torch.float64


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5)).double()


X = torch.randn(6, 5, dtype=F64, generator=torch.Generator().manual_seed(1))
Y = torch.arange(6) % 5


def paid(penalty, **given):
    """The value and its gradient."""
    model = net()
    value = penalty(jn.linearize(model, X), labels=Y, **given)
    value.backward()
    return torch.cat(
        [value.detach()[None], *(p.grad.flatten() for p in model.parameters() if p.grad is not None)]
    )


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (lambda **k: jn.SpectralPenalty(1.0, start="random", **k), "iterations", 3),
        (lambda **k: jn.AnalyticPenalty(1.0, **k), "h", "square"),
        (lambda **k: jn.AnalyticPenalty(1.0, h="hinge", **k), "threshold", 0.2),
        (lambda **k: jn.AnalyticPenalty(1.0, **k), "reduction", "max"),
        (lambda **k: jn.AnalyticPenalty(1.0, **k), "every", 3),
        (lambda **k: jn.AnalyticPenalty(1.0, **k), "fraction", 0.5),
        (lambda **k: jn.FrobeniusPenalty(1.0, **k), "projections", "all"),
        (lambda **k: jn.FrobeniusPenalty(1.0, **k), "seed", 4),
        (lambda **k: jn.MarginPenalty(1.0, **k), "radius", 5.0),
        (lambda **k: jn.MarginPenalty(1.0, h=lambda r: torch.exp(-r), **k), "norm", "inf"),
        (lambda **k: jn.GradientPenalty(1.0, **k), "p", 1),
        (lambda **k: jn.SchattenPenalty(1.0, **k), "p", 3),
        (lambda **k: jn.SchattenPenalty(1.0, **k), "k", 2),
        (lambda **k: jn.InducedPenalty(1.0, **k), "p", 1),
        (lambda **k: jn.TracePenalty(1.0, **k), "probes", "all"),
        (lambda **k: jn.SpectralRadiusPenalty(1.0, **k), "max_iterations", 1),
        (lambda **k: jn.SpectralBoundPenalty(1.0, **k), "iterations", 20),
    ],
)
def test_a_setting_may_be_set_later(make, name, value):
    """As if the constructor had got it."""
    penalty = make()
    setattr(penalty, name, value)
    found, plain = paid(penalty), paid(make())
    torch.testing.assert_close(found, paid(make(**{name: value})), rtol=0, atol=0)
    assert not torch.equal(found, plain)


@pytest.mark.parametrize(
    ("make", "name", "value", "message"),
    [
        (jn.SpectralPenalty, "h", "cube", "h='cube': choose one of identity, square, hinge, or give"),
        (jn.SpectralPenalty, "h", lambda s: s.sum(), "h must give one number for each norm"),
        (jn.SpectralPenalty, "reduction", "avg", "reduction='avg': choose one of mean, sum, max, none"),
        (jn.SpectralPenalty, "threshold", -1, "threshold=-1"),
        (jn.SpectralPenalty, "iterations", 0, "iterations=0: it must be a whole number"),
        (jn.SpectralPenalty, "start", "x", "start='x': choose one of recent, output, random"),
        (jn.SpectralPenalty, "tol", 0, "tol=0"),
        (jn.SpectralPenalty, "fraction", 2, "fraction=2: it must be above 0"),
        (jn.SpectralPenalty, "every", 0, "every=0"),
        (jn.SpectralPenalty, "budget", 0.5, r"budget=0\.5"),
        (jn.SpectralPenalty, "seed", "x", "seed='x': it must be a whole number"),
        (jn.FrobeniusPenalty, "projections", 0, "projections=0"),
        (jn.MarginPenalty, "candidates", 0, "candidates=0"),
        (jn.MarginPenalty, "radius", -1, "radius=-1"),
        (jn.MarginPenalty, "norm", 3, "norm=3: choose 2 or 'inf'"),
        (jn.GradientPenalty, "p", 3, "p=3: choose 1 or 2"),
        (jn.SchattenPenalty, "p", 0.5, r"p=0\.5: it must be a number from 1 on"),
        (jn.SchattenPenalty, "k", 0, "k=0"),
        (jn.InducedPenalty, "p", 2, "p=2: choose 1 or 'inf'"),
        (jn.TracePenalty, "probes", 0, "probes=0"),
        (jn.SpectralRadiusPenalty, "max_iterations", 0, "max_iterations=0"),
        (jn.SpectralBoundPenalty, "iterations", 0, "iterations=0"),
        (jn.SpectralBoundPenalty, "convolution", "x", "choose one of operator, kernel"),
    ],
)
def test_a_bad_setting_is_refused_at_first_and_later(make, name, value, message):
    with pytest.raises(jn.InputError, match=message):
        make(**{name: value})
    penalty = make()
    before = getattr(penalty, name)
    with pytest.raises(jn.InputError, match=message):
        setattr(penalty, name, value)
    assert getattr(penalty, name) == before


@pytest.mark.parametrize("reduction", ["max", "none"])
def test_values_that_mix_samples_have_no_gradient_of_their_own(reduction):
    """With a sum or a mean they have one."""
    with pytest.raises(jn.InputError, match="h mixes the norms of different samples, and reduction="):
        jn.AnalyticPenalty(1.0, h=lambda s: s * s.mean(), reduction=reduction)
    model = net()
    value = jn.AnalyticPenalty(1.0, h=lambda s: s * s.mean())(jn.linearize(model, X))
    value.backward()
    twin = net()
    D = torch.stack([torch.autograd.functional.jacobian(twin, x, create_graph=True) for x in X])
    sigma = torch.linalg.svdvals(D)[:, 0]
    expected = sigma.mean() ** 2
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(model[0].weight.grad, twin[0].weight.grad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: jn.MarginPenalty(1.0, radius=9.0),
        lambda: jn.GradientPenalty(1.0),
        lambda: jn.SpectralPenalty(1.0, h=lambda s: (s - 1) ** 2),
    ],
)
def test_inference_mode(make):
    """The value is the same, of tensors that were made there, too."""
    model = net()
    expected = make()(jn.linearize(model, X), labels=Y)
    with torch.inference_mode():
        found = make()(jn.linearize(model, X.clone()), labels=Y.clone())
    torch.testing.assert_close(found, expected.detach())


def test_weights_of_inference_mode_are_named():
    with torch.inference_mode():
        model = net()
    with pytest.raises(
        jn.ModelError, match=r"made under torch\.inference_mode: make the model outside of it"
    ):
        jn.linearize(model, X)


@pytest.mark.parametrize("labels", [Y.int(), Y.to(torch.uint8), Y.tolist(), F.one_hot(Y, 5).double()])
def test_labels_of_any_kind(labels):
    penalty, J = jn.GradientPenalty(1.0), jn.linearize(net(), X)
    assert torch.equal(penalty(J, labels=labels), penalty(J, labels=Y))


@pytest.mark.parametrize(
    ("penalty", "given", "message"),
    [
        (jn.GradientPenalty(), {"labels": Y + 9}, r"The loss failed on an output of shape \(6, 5\)"),
        (jn.GradientPenalty(), {"labels": Y[:3]}, "The loss failed on an output of shape"),
        (jn.GradientPenalty(fraction=0.5), {"labels": Y[:3]}, r"labels has shape \(3,\); it must have a row"),
        (jn.GradientPenalty(fraction=0.5), {"labels": Y.repeat(2)}, r"labels has shape \(12,\)"),
        (jn.SpectralPenalty(fraction=0.5), {"index": Y[:3]}, r"index has shape \(3,\); it must have a row"),
        (jn.SpectralPenalty(), {"index": "abcd"}, "Found 'abcd', which is no tensor"),
        (jn.MarginPenalty(), {"labels": "abcd"}, "Found 'abcd', which is no tensor"),
    ],
)
def test_labels_and_positions_that_do_not_fit(penalty, given, message):
    with pytest.raises(jn.InputError, match=message):
        penalty(jn.linearize(net(), X), **given)


def test_a_frozen_network_pays_its_input():
    """The value is σ, and the gradient goes to x."""
    model, x = net().eval().requires_grad_(False), X.clone().requires_grad_()
    J = jn.linearize(model, x)
    value = jn.AnalyticPenalty(1.0)(J)
    value.backward()
    torch.testing.assert_close(value.detach(), mean_sigma(J.dense().detach()))
    again = X.clone().requires_grad_()
    D = torch.stack([torch.autograd.functional.jacobian(model, row, create_graph=True) for row in again])
    torch.linalg.svdvals(D)[:, 0].mean().backward()
    torch.testing.assert_close(x.grad, again.grad)
