"""With `index=` the gradient is made of outer products, one a layer: that of mean uᵀJ v for the stored u."""

import pytest
import torch
from cases import CASES
from test_gradients import WITH_PARAMETERS, assert_gradients, dense_gradient
from torch import nn

import jacnorm as jn
from jacnorm.estimators.operator import flat, normalized

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
    stays = w.norm(dim=1, keepdim=True) == 0  # where J is zero
    torch.testing.assert_close(penalty.u, torch.where(stays, u, normalized(w)))
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


def test_a_frozen_layer_gets_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    jn.SpectralPenalty()(jn.linearize(model, torch.randn(5, 4)), index=torch.arange(5)).backward()
    assert model[0].weight.grad is None
    assert model[2].weight.grad.abs().max() > 0


def test_differentiating_twice_is_refused():
    """The cotangents are constants here; half a second derivative would be worse than none."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    value = jn.SpectralPenalty()(jn.linearize(model, torch.randn(5, 4)), index=torch.arange(5))
    with pytest.raises(jn.InputError, match="leave index= out"):
        torch.autograd.grad(value, model[0].weight, create_graph=True)
