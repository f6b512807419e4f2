"""Real models of `transformers` and `diffusers`: all calls by rules, J and gradients as autograd has them."""

import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from oracles import dense, gradient, mean_sigma
from torch import nn
from zoo.huggingface import MODELS, PARTLY_SINGLE

import jacnorm as jn

BOTH_MODES = [replace(model, training=training) for model in MODELS for training in (False, True)]


class InDouble:
    """`torch`, whose single precision is double: some models compute norms and softmax in float32."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def in_double(case, monkeypatch):
    for name in {type(module).__module__ for module in case.make()[0].modules()}:
        if name.startswith("transformers.models."):
            monkeypatch.setattr(sys.modules[name], "torch", InDouble())


def far(actual, expected):
    """The relative error."""
    return float((actual.detach() - expected.detach()).norm() / expected.detach().norm())


def agrees(case, tolerance):
    model, x = case.make()
    expected = dense(model, x)
    wanted = gradient(mean_sigma(expected), model)
    for _ in range(2):  # examined, then known
        J = jn.linearize(model, x)
        assert (J.engine, J.reason) == ("layerwise", None)
        assert far(J.output, model(x)) < tolerance
        assert far(J.dense(), expected) < tolerance
        assert far(gradient(jn.AnalyticPenalty(1.0)(J), model), wanted) < tolerance
    return J


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("case", BOTH_MODES, ids=str)
def test_jacobian_and_gradient_of_its_norm(case):
    J = agrees(case, 1e-7)
    learning = [step.name for step in J.tape.steps if step.learns and step.terms is None]
    assert not learning, "differentiated by autograd"


@pytest.mark.parametrize("case", PARTLY_SINGLE, ids=str)
def test_as_it_is_with_its_float32(case):
    agrees(case, 2e-6)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("case", MODELS, ids=str)
def test_samples_are_independent(case):
    """Both ways, and a sample alone has the Jacobian that it has in the batch."""
    model, x = case.make()
    z = x.clone().requires_grad_()
    assert not torch.autograd.grad(model(z)[0].sum(), z)[0][1:].any()
    J = jn.linearize(model, x)
    v, u = torch.randn_like(x), torch.randn_like(J.output)
    v[1:], u[1:] = 0, 0
    assert not J.jvp(v)[1:].any()
    assert not J.vjp(u)[1:].any()
    assert far(jn.linearize(model, x[:1]).dense(), J.dense()[:1]) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "softmax",
    [
        lambda x, dtype: F.softmax(x, dim=-1, dtype=dtype),
        lambda x, dtype: F.softmax(x, -1, 3, dtype),
        lambda x, dtype: torch.softmax(x, -1, dtype),
        lambda x, dtype: x.log_softmax(-1, dtype=dtype),
        lambda x, dtype: x.log_softmax(-1, dtype),
    ],
)
def test_softmax_in_another_precision(softmax, dtype):
    """As eager attention takes it."""
    layer, x = nn.Linear(4, 3).to(dtype), torch.randn(2, 4).to(dtype)
    expected = dense(lambda z: softmax(layer(z), torch.float32), x)
    J = jn.linearize(lambda z: softmax(layer(z), torch.float32), x)
    assert (J.output.dtype, J.engine, J.reason) == (torch.float32, "layerwise", None)
    assert far(J.dense().double(), expected.double()) < (2e-2 if dtype == torch.bfloat16 else 1e-6)
