"""With `index=` the gradient is made of outer products, one a layer: that of mean uᵀJ v for the stored u."""

import pytest
import torch
from cases import CASES
from test_gradients import WITH_PARAMETERS, assert_gradients, dense_gradient
from torch import nn

import jacnorm as jn
from jacnorm.estimators.operator import flat, normalized


def has_parameters(case):
    model = case.build()
    return isinstance(model, nn.Module) and any(True for _ in model.parameters())


LAYERWISE = [case for case in CASES if case.engine == "layerwise"]


def penalty_with(u):
    penalty = jn.SpectralPenalty(weight=1.0)
    penalty.u = flat(u).clone()
    return penalty


def some_u(J):
    generator = torch.Generator().manual_seed(2)
    return normalized(torch.randn(J.output_shape, dtype=J.dtype, generator=generator))


@pytest.mark.parametrize("case", [c for c in WITH_PARAMETERS if c.engine == "layerwise"], ids=str)
def test_value_and_gradient(case):
    model, x = case.make()
    J = jn.linearize(model, x)
    u, dense = flat(some_u(J)), J.dense().detach()
    v = normalized(torch.einsum("boi,bo->bi", dense, u))
    penalty = penalty_with(u)
    value = penalty(J, index=torch.arange(len(x)))
    w = torch.einsum("boi,bi->bo", dense, v)
    torch.testing.assert_close(value.detach(), w.norm(dim=1).mean())
    torch.testing.assert_close(penalty.u, normalized(w))  # zero, for a new start, where J is
    value.backward()
    assert_gradients(model, dense_gradient(model, x, lambda J: torch.einsum("bo,boi,bi->b", u, J, v).mean()))


@pytest.mark.parametrize("batch_norm", ["fixed", "flowing"])
@pytest.mark.parametrize("case", LAYERWISE, ids=str)
def test_the_same_as_back_propagating_through_a_product(case, batch_norm):
    """In training mode too, and for a weight before the model, so that every layer hands something on."""
    model, x = case.make()
    scale = torch.linspace(0.5, 1.5, x[0].numel(), dtype=x.dtype).view(x[0].shape).requires_grad_()
    J = jn.linearize(lambda x: model(scale * x), x, batch_norm=batch_norm)
    u = some_u(J)
    with torch.no_grad():
        v = normalized(J.vjp(u))
    expected = torch.autograd.grad((u * J.jvp(v)).sum() / len(x), scale, retain_graph=True)[0]
    found = torch.autograd.grad(penalty_with(u)(J, index=torch.arange(len(x))), scale)[0]
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))


@pytest.mark.parametrize("case", [c for c in LAYERWISE if c.training and has_parameters(c)], ids=str)
def test_weights_in_training_mode(case):
    model, x = case.make()
    J = jn.linearize(model, x)
    u, parameters = some_u(J), list(model.parameters())
    with torch.no_grad():
        v = normalized(J.vjp(u))
    options = {"allow_unused": True, "retain_graph": True}
    expected = torch.autograd.grad((u * J.jvp(v)).sum() / len(x), parameters, **options)
    found = torch.autograd.grad(penalty_with(u)(J, index=torch.arange(len(x))), parameters, **options)
    scale = max(float(g.abs().max()) for g in expected if g is not None)
    for ours, theirs in zip(found, expected, strict=True):
        zero = torch.zeros(())
        torch.testing.assert_close(
            zero if ours is None else ours, zero if theirs is None else theirs, rtol=1e-8, atol=1e-8 * scale
        )


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()


X = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
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

    def quantity(J):
        sigma = torch.linalg.matrix_norm(J, 2)
        return (sigma**2 if options["h"] == "square" else sigma - 1e-3).mean()

    penalty(J, index=ALL).backward()
    assert_gradients(model, dense_gradient(model, X, quantity))


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
