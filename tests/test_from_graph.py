"""J from a graph that exists already."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jacnorm as jn
from jacnorm.errors import CoupledSamplesError, InputError, UnsupportedModelError


@pytest.fixture
def made():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return net, torch.randn(4, 5).double().requires_grad_()


def test_products_and_norms_are_those_of_linearize(made):
    net, x = made
    J, expected = jn.jacobian_of(net(x), x), jn.linearize(net, x)
    torch.testing.assert_close(J.dense(), expected.dense())
    v, u = torch.randn_like(x), torch.randn(4, 3).double()
    torch.testing.assert_close(J.jvp(v), expected.jvp(v))
    torch.testing.assert_close(J.vjp(u), expected.vjp(u))
    found, sigma = jn.spectral_norm(J, tol=1e-8).sigma, jn.spectral_norm(expected, tol=1e-8).sigma
    torch.testing.assert_close(found, sigma)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_gradient_of_a_penalty_reaches_all_that_learns(made, depth):
    """Also what lies behind x, where that is an activation."""
    net, first = made
    x = net[:2](first) if depth else first
    y = net[2](x) if depth else net(x)
    penalty = jn.AnalyticPenalty(1.0)
    (y.square().mean() + penalty(jn.jacobian_of(y, x))).backward()
    found = [p.grad.clone() for p in net.parameters()]
    x = net[:2](first) if depth else first
    y = net[2](x) if depth else net(x)
    rows = [torch.autograd.grad(y[:, k].sum(), x, create_graph=True)[0] for k in range(3)]
    sigma = torch.linalg.matrix_norm(torch.stack(rows, 1), 2)
    loss = y.square().mean() + sigma.mean()
    for a, b in zip(found, torch.autograd.grad(loss, list(net.parameters())), strict=True):
        torch.testing.assert_close(a, b)


def test_what_a_graph_cannot_give_is_refused_with_the_reason():
    x = torch.randn(2, 1, 4, 8, requires_grad=True)
    y = F.scaled_dot_product_attention(x, x, x)
    J = jn.jacobian_of(y, x)
    u = torch.randn_like(y)
    torch.testing.assert_close(J.vjp(u), torch.autograd.grad(y, x, u, retain_graph=True)[0])
    with pytest.raises(UnsupportedModelError, match=r"_scaled_dot_product.* is not implemented"):
        J.jvp(torch.randn_like(x))


def test_samples_that_see_each_other_are_refused():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))
    x = torch.randn(6, 5, requires_grad=True)
    with pytest.raises(CoupledSamplesError):
        jn.jacobian_of(net(x), x)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda net, x: (net(x.detach()), x.detach()), "does not depend on x"),
        (lambda net, x: (net(x.clone()), x.clone()), "does not depend on x"),
        (lambda net, x: (net(x).sum(), x), "first axis must be the batch"),
    ],
)
def test_bad_input(made, make, match):
    with pytest.raises(InputError, match=match):
        jn.jacobian_of(*make(*made))


def test_a_part_of_the_batch_needs_a_model(made):
    net, x = made
    with pytest.raises(InputError, match="a graph has no model"):
        jn.SpectralPenalty(fraction=0.5)(jn.jacobian_of(net(x), x))
