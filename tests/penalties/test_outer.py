"""With `index=` the gradient is made of outer products, one a layer: that of mean uᵀJ v for the stored u."""

import pytest
import torch
from agreement import Behind
from cases import NETS
from oracles import arrived, assert_near, dense, gradient, pull, push
from torch import nn

import jacnorm as jn
from jacnorm.estimators.operator import flat, normalized


def penalty_with(u):
    penalty = jn.SpectralPenalty(weight=1.0)
    penalty.u = flat(u).clone()
    return penalty


def some_u(J):
    generator = torch.Generator(torch.get_default_device()).manual_seed(2)
    return normalized(torch.randn(J.output_shape, dtype=J.dtype, generator=generator))


@pytest.mark.parametrize("case", NETS, ids=str)
def test_value_and_gradient(case):
    for batch_norm in case.conventions:
        model, x = case.make()
        model = Behind(model, x)
        D = dense(model, x, flowing=batch_norm == "flowing")
        J = jn.linearize(model, x, batch_norm=batch_norm)
        u = flat(some_u(J))
        v = normalized(pull(D, u)).detach()
        penalty = penalty_with(u)
        value = penalty(J, index=torch.arange(len(x)))
        w = push(D, v).detach()
        torch.testing.assert_close(value.detach(), w.norm(dim=1).mean())
        torch.testing.assert_close(penalty.u, normalized(w))  # zero, for a new start, where J is
        value.backward()
        assert_near(arrived(model), gradient((u * push(D, v)).sum(1).mean(), model), 1e-8)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


X = torch.randn(
    5, 4, dtype=torch.float64, generator=torch.Generator(torch.get_default_device()).manual_seed(1)
)
ALL = torch.arange(5)


def gradient_of(value, model):
    return torch.autograd.grad(value, model[0].weight)[0]


def test_two_rounds_are_one_round_from_where_the_first_has_come():
    model = small()
    J = jn.linearize(model, X)
    first, both = penalty_with(some_u(J)), penalty_with(some_u(J))
    both.iterations = 2
    first(J, index=ALL)
    expected = gradient_of(first(jn.linearize(model, X), index=ALL), model)
    torch.testing.assert_close(gradient_of(both(J, index=ALL), model), expected)


@pytest.mark.parametrize("options", [{"h": "square"}, {"h": "hinge", "threshold": 1e-3}])
def test_another_h_is_back_propagated(options):
    """Its gradient has a factor for each sample, which outer products do not know."""
    model = small()
    J = jn.linearize(model, X)
    penalty = jn.SpectralPenalty(1.0, iterations=200, **options)
    penalty.u = flat(some_u(J)).clone()

    penalty(J, index=ALL).backward()
    sigma = torch.linalg.matrix_norm(dense(model, X), 2)
    expected = (sigma**2 if options["h"] == "square" else sigma - 1e-3).mean()
    assert_near(arrived(model), gradient(expected, model), 1e-6)


def test_a_first_guess_is_improved_before_it_counts():
    """Samples that come by for the first time get the gradient that they get without `index`."""
    model = small()
    with_index = gradient_of(jn.SpectralPenalty()(jn.linearize(model, X), index=ALL), model)
    without = gradient_of(jn.SpectralPenalty()(jn.linearize(model, X)), model)
    torch.testing.assert_close(with_index, without)


def test_weights_that_changed_are_noticed():
    model = small()
    J = jn.linearize(model, X)
    penalty = penalty_with(some_u(J))
    with torch.no_grad():
        model[0].weight.mul_(2)
    with pytest.raises(jn.InputError, match="weights have changed"):
        penalty(J, index=ALL)


def test_a_frozen_layer_gets_nothing():
    model = small()
    model[0].requires_grad_(False)
    J = jn.linearize(model, X)
    penalty_with(some_u(J))(J, index=ALL).backward()
    assert model[0].weight.grad is None
    assert model[2].weight.grad.abs().max() > 0


def test_differentiating_twice_is_refused():
    """The singular vectors are constants; half a second derivative would be worse than none."""
    model = small()
    penalties = [jn.SpectralPenalty(), jn.SpectralPenalty(start="random"), jn.AnalyticPenalty()]
    values = [penalty(jn.linearize(model, X)) for penalty in [*penalties, jn.SpectralBoundPenalty()]]
    J = jn.linearize(model, X)
    for value in [*values, penalty_with(some_u(J))(J, index=ALL)]:
        with pytest.raises(jn.InputError, match="cannot be differentiated again"):
            torch.autograd.grad(value, model[0].weight, create_graph=True)
