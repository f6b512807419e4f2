"""a·J + b·I and J D against the dense matrices: products, norms, penalties, gradients."""

import pytest
import torch
from oracles import assert_near, dense, gradient, push, top_left
from torch import nn

import jacnorm as jn

F64 = torch.float64


@pytest.fixture(params=["layerwise", "autograd"])
def denoiser(request):
    torch.manual_seed(0)
    activation = nn.ReLU() if request.param == "layerwise" else nn.Softplus()
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), activation, nn.Conv2d(3, 1, 3, padding=1)).to(F64)


@pytest.fixture
def x():
    return torch.randn(3, 1, 4, 4, dtype=F64)


VARIANCE = torch.linspace(0.2, 2, 16, dtype=F64).view(1, 4, 4)
MIX = torch.linspace(-1, 1, 16, dtype=F64).view(4, 4)  # acts on the columns of an image
TRANSFORMS = {
    "2J - I": (lambda J: J.affine(2, -1), lambda A: 2 * A - torch.eye(16, dtype=F64)),
    "I - J": (lambda J: J.affine(-1, 1), lambda A: torch.eye(16, dtype=F64) - A),
    "JD": (lambda J: J.weighted(VARIANCE), lambda A: A * VARIANCE.flatten()),
    "pair": (
        lambda J: J.weighted((lambda v: v @ MIX, lambda u: u @ MIX.T)),
        lambda A: (A.unflatten(2, (4, 4)) @ MIX.T).flatten(2),
    ),
    "both": (
        lambda J: J.weighted(VARIANCE).affine(2, -1),
        lambda A: 2 * A * VARIANCE.flatten() - torch.eye(16, dtype=F64),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_products_norms_and_gradients(name, denoiser, x):
    ours, by_hand = TRANSFORMS[name]
    J = jn.linearize(denoiser, x)
    K = ours(J)
    expected = by_hand(dense(denoiser, x))
    assert K.engine == J.engine
    assert K.output is J.output
    torch.testing.assert_close(K.dense(), expected)
    v = torch.randn_like(x)
    torch.testing.assert_close(K.jvp(v).flatten(1), push(expected, v))
    sigma = torch.linalg.matrix_norm(expected, 2)
    torch.testing.assert_close(jn.spectral_norm(K).sigma, sigma.detach())
    torch.testing.assert_close(jn.frobenius_norm(K), torch.linalg.matrix_norm(expected).detach())

    penalty = jn.SpectralPenalty(weight=1.0)
    penalty.u = top_left(expected)
    value = penalty(K, index=torch.arange(3))
    torch.testing.assert_close(value, sigma.mean())
    assert_near(gradient(value, denoiser), gradient(sigma.mean(), denoiser), 1e-8)


def test_penalties_go_on_from_step_to_step(denoiser, x):
    """The gradient that arrives at u is the next power step of 2J - I, not of J."""
    K = jn.linearize(denoiser, x).affine(2, -1)
    penalty = jn.SpectralPenalty(weight=1.0)
    for _ in range(500):
        value = penalty(K, index=torch.arange(3))
        value.backward(retain_graph=True)
    torch.testing.assert_close(value.detach(), jn.spectral_norm(K).sigma.mean(), rtol=1e-4, atol=0)


def test_frobenius_penalty_is_that_of_the_transform(denoiser, x):
    K = jn.linearize(denoiser, x).affine(2, -1)
    with torch.no_grad():
        value = jn.FrobeniusPenalty(weight=1.0, projections=500)(K)
    torch.testing.assert_close(value, jn.frobenius_norm(K).square().mean(), rtol=0.05, atol=0)


def test_factors_are_differentiable(x):
    scale = VARIANCE.clone().requires_grad_()
    J = jn.linearize(nn.Conv2d(1, 1, 3).to(F64), x)
    J.weighted(scale).dense().square().sum().backward()
    expected = 2 * VARIANCE * J.dense().detach().square().sum((0, 1)).view(1, 4, 4)
    torch.testing.assert_close(scale.grad, expected)


def test_the_parent_is_left_alone(denoiser, x):
    J = jn.linearize(denoiser, x)
    before = J.dense()
    J.affine(2, -1), J.weighted(VARIANCE)
    torch.testing.assert_close(J.dense(), before)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context, denoiser, x):
    expected = jn.spectral_norm(jn.linearize(denoiser, x).affine(2, -1)).sigma
    with context():
        found = jn.spectral_norm(jn.linearize(denoiser, x).affine(2, -1).weighted(torch.ones(1))).sigma
    torch.testing.assert_close(found, expected)


def test_what_does_not_fit():
    J = jn.linearize(nn.Linear(4, 3), torch.randn(2, 4))
    with pytest.raises(jn.InputError, match=r"goes from \(2, 4\) to \(2, 3\)"):
        J.affine(2, -1)
    with pytest.raises(jn.InputError, match=r"D has shape \(3,\), which does not broadcast"):
        J.weighted(torch.ones(3))
    with pytest.raises(jn.InputError, match=r"D has shape \(5, 2, 4\), which does not broadcast"):
        J.weighted(torch.ones(5, 2, 4))
    with pytest.raises(jn.InputError, match=r"D maps \(2, 4\) to \(2, 2\); it must map it to \(2, 4\)"):
        J.weighted((lambda v: v[:, :2], lambda u: u))
    turn = torch.tensor([[0.0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]])
    J.weighted((lambda v: v @ turn, lambda u: u @ turn.T))
    with pytest.raises(jn.InputError, match="not the transpose"):
        J.weighted((lambda v: v @ turn, lambda u: u @ turn))


def test_a_product_bound_is_of_the_network_itself():
    J = jn.linearize(nn.Linear(4, 4), torch.randn(2, 4))
    with pytest.raises(jn.UnsupportedModelError, match="of the network itself"):
        jn.product_bound(J.affine(2, -1))
