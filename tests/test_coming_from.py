"""docs/coming-from.md: each recipe against the formula of the library it stands in for, by double backward.

The formulas are written out here from the papers and from how the libraries say they compute.
"""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_near, gradient
from torch import nn
from torch.func import functional_call, jacrev, jvp, vmap

import jacnorm as jn

F64 = torch.float64


def classifier(activation=nn.ReLU):
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), activation(), nn.Flatten(), nn.Linear(4 * 16, 5)
    return nn.Sequential(*layers).to(F64)


def denoiser():
    """With a singular value well above the others, so that few rounds find it."""
    torch.manual_seed(0)
    Q = torch.linalg.qr(torch.randn(16, 16)).Q
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 16), nn.Softplus(), nn.Linear(16, 16), nn.Unflatten(1, (1, 4, 4))
    )
    with torch.no_grad():
        net[1].weight.copy_(Q * 0.5 ** torch.arange(16) @ Q.T)
        net[3].weight.copy_(8 * net[1].weight)
    return net.to(F64)


def critic():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    ).to(F64)


def agree(net, ours, theirs, tolerance=1e-6):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=1e-12)
    assert_near(gradient(ours, net), gradient(theirs, net), tolerance)


def leaf(x):
    return x.clone().requires_grad_()


# jacobian_regularizer -----------------------------------------------------------------------------------


def jacobian_reg(x, y, vectors):
    """½ · mean of C ‖vᵀJ‖² over the vectors and the batch."""
    samples, classes = y.shape
    total = 0
    for v in vectors:
        (pulled,) = torch.autograd.grad(y, x, v, create_graph=True)
        total = total + classes * pulled.square().sum() / (len(vectors) * samples)
    return total / 2


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_jacobian_regularizer_exact(activation):
    """n=-1: all unit vectors; λ · R is weight λ/2."""
    net, x, strength = classifier(activation), torch.randn(3, 1, 6, 6, dtype=F64), 0.3
    z = leaf(x)
    units = [e.expand(3, 5) for e in torch.eye(5, dtype=F64)]
    theirs = strength * jacobian_reg(z, net(z), units)
    agree(net, jn.FrobeniusPenalty(strength / 2, "all")(jn.linearize(net, x)), theirs)


def test_jacobian_regularizer_from_random_directions():
    """With the same directions the same number: they are uniform on the sphere in both."""
    net, x, strength = classifier(), torch.randn(3, 1, 6, 6, dtype=F64), 0.3
    penalty, again = jn.FrobeniusPenalty(strength / 2, 2, seed=5), jn.FrobeniusPenalty(seed=5)
    directions = [again.random(torch.Size((3, 5)), x) for _ in range(2)]
    z = leaf(x)
    theirs = strength * jacobian_reg(z, net(z), [v / v.norm(dim=1, keepdim=True) for v in directions])
    agree(net, penalty(jn.linearize(net, x)), theirs)


def test_jacobian_regularizer_with_batch_norm():
    """Theirs differentiates the batch's statistics, too; in evaluation mode the two are the same."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)).to(F64)
    x, units = torch.randn(4, 6, dtype=F64), [e.expand(4, 5) for e in torch.eye(5, dtype=F64)]
    z = leaf(x)
    theirs = jacobian_reg(z, net(z), units)
    ours = jn.FrobeniusPenalty(0.5, "all")(jn.linearize(net, x))
    assert not torch.isclose(ours, theirs, rtol=0.01)
    net.eval()
    z = leaf(x)
    agree(net, jn.FrobeniusPenalty(0.5, "all")(jn.linearize(net, x)), jacobian_reg(z, net(z), units))


# deepinv ------------------------------------------------------------------------------------------------


def power_method(y, x, rounds):
    """The root of uᵀJᵀJ u of each sample, unrolled: everything has a graph."""
    u = torch.randn_like(x)
    u = u / u.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    for _ in range(rounds):
        w = torch.ones_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, x, w, create_graph=True)
        (pushed,) = torch.autograd.grad(pulled, w, u, create_graph=True)
        (v,) = torch.autograd.grad(y, x, pushed, create_graph=True)
        size = (u * v).flatten(1).sum(1)
        u = v / v.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    return size.sqrt()


@pytest.mark.parametrize("reduction", ["max", "mean", "sum"])
def test_deepinv_spectral_norm(reduction):
    net, x = denoiser(), torch.randn(3, 1, 4, 4, dtype=F64)
    z = leaf(x)
    values = power_method(net(z), z, 60)
    theirs = {"max": values.max(), "mean": values.mean(), "sum": values.sum()}[reduction]
    penalty = jn.SpectralPenalty(1.0, iterations=60, start="random", reduction=reduction)
    agree(net, penalty(jn.linearize(net, x)), theirs)


@pytest.mark.parametrize("interpolation", [True, False])
def test_deepinv_firmly_nonexpansive(interpolation):
    net, clean = denoiser(), torch.randn(3, 1, 4, 4, dtype=F64)
    x = clean + 0.1 * torch.randn_like(clean)
    if interpolation:
        eta = torch.rand(3, 1, 1, 1, dtype=F64)
        x = eta * x + (1 - eta) * clean
    z = leaf(x)
    theirs = power_method(2 * net(z) - z, z, 60).max()
    penalty = jn.SpectralPenalty(1.0, iterations=60, reduction="max")
    agree(net, penalty(jn.linearize(net, x).affine(2, -1)), theirs)


# GANs ---------------------------------------------------------------------------------------------------


def slope_of(net, x):
    z = leaf(x)
    return torch.autograd.grad(net(z).sum(), z, create_graph=True)[0]


def test_wgan_gp():
    net, real, fake = critic(), torch.randn(8, 6, dtype=F64), torch.randn(8, 6, dtype=F64)
    eps = torch.rand(8, 1, dtype=F64)
    x = eps * real + (1 - eps) * fake
    theirs = 10 * ((slope_of(net, x).norm(dim=1) - 1) ** 2).mean()
    agree(net, jn.GradientPenalty(10, None, h=lambda s: (s - 1) ** 2)(jn.linearize(net, x)), theirs)
    agree(net, jn.SpectralPenalty(10, h=lambda s: (s - 1) ** 2)(jn.linearize(net, x)), theirs)


def test_r1_and_r2():
    net, real, gamma = critic(), torch.randn(8, 6, dtype=F64), 0.7
    theirs = gamma / 2 * slope_of(net, real).square().sum(1).mean()
    J = jn.linearize(net, real)
    agree(net, jn.GradientPenalty(gamma / 2, None, h="square")(J), theirs)
    both = F.softplus(-J.output).mean() + jn.GradientPenalty(gamma / 2, None, h="square")(J)
    agree(net, both, F.softplus(-net(real)).mean() + theirs)


def test_input_gradient_regularization():
    net, x, labels = classifier(nn.Tanh), torch.randn(3, 1, 6, 6, dtype=F64), torch.tensor([0, 4, 2])
    z = leaf(x)
    loss = F.cross_entropy(net(z), labels, reduction="sum")
    (slope,) = torch.autograd.grad(loss, z, create_graph=True)
    theirs = 0.1 * slope.square().sum((1, 2, 3)).mean()
    agree(net, jn.GradientPenalty(0.1, h="square")(jn.linearize(net, x), labels=labels), theirs)


# torchdeq -----------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """f(z, x) of an equilibrium model."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(4, 6)

    def forward(self, z, x):
        return torch.tanh(self.inner(z) + self.outer(x))


def test_torchdeq():
    """Theirs divides by all of the state's numbers: ‖J‖_F²/n, on average over Gaussian v."""
    torch.manual_seed(0)
    f = Layer().to(F64)
    state, x, strength = torch.randn(3, 6, dtype=F64), torch.randn(3, 4, dtype=F64), 0.4
    z = leaf(state)
    y = f(z, x)
    theirs = 0
    for v in torch.eye(6, dtype=F64):  # of which E v vᵀ is the sum
        (pulled,) = torch.autograd.grad(y, z, v.expand(3, 6), create_graph=True)
        theirs = theirs + strength * pulled.norm() ** 2 / state.numel()
    n = state[0].numel()
    agree(f, jn.FrobeniusPenalty(strength / n, "all")(jn.linearize(f, state, x)), theirs)
    one = jn.FrobeniusPenalty(strength / n)
    with torch.no_grad():
        J = jn.linearize(f, state, x)
        estimates = torch.stack([one(J) for _ in range(3000)])
    torch.testing.assert_close(estimates.mean(), theirs.detach(), rtol=0.03, atol=0)


def test_torchdeq_spectral_radius():
    """Power iteration on Jᵀ with a quotient; its sign and complex pairs are what Arnoldi's method is for."""
    torch.manual_seed(0)
    f = Layer().to(F64)
    state, x = torch.randn(3, 6, dtype=F64), torch.randn(3, 4, dtype=F64)
    dense = vmap(jacrev(f))(state, x)
    with torch.no_grad():
        found = jn.SpectralRadiusPenalty(1.0, reduction="none")(jn.linearize(f, state, x))
    torch.testing.assert_close(found, torch.linalg.eigvals(dense).abs().amax(1).detach())


# torch.func ---------------------------------------------------------------------------------------------


def test_torch_func():
    net, x, v = classifier(nn.Tanh), torch.randn(3, 1, 6, 6, dtype=F64), torch.randn(3, 1, 6, 6, dtype=F64)
    J = jn.linearize(net, x)
    value, pushed = jvp(net, (x,), (v,))
    torch.testing.assert_close(J.output, value)
    torch.testing.assert_close(J.jvp(v), pushed)
    rows = vmap(jacrev(lambda one: net(one[None])[0]))(x)
    torch.testing.assert_close(J.dense(), rows.flatten(2))

    parameters = dict(net.named_parameters())

    def loss(theta):
        return jvp(lambda z: functional_call(net, theta, (z,)), (x,), (v,))[1].square().sum()

    theirs = torch.cat([g.flatten() for g in torch.func.grad(loss)(parameters).values()])
    assert_near(gradient(J.jvp(v).square().sum(), net), theirs, 1e-6)


# LipsNet ------------------------------------------------------------------------------------------------


class Policy(nn.Module):
    """K(x) f(x)/(‖J(x)‖_F + ε), with ‖J‖ by `norm`."""

    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(0)
        self.f = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        self.K = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1), nn.Softplus())
        self.norm = norm

    def forward(self, x):
        y, length = self.norm(self.f, x)
        return self.K(x) * y / (length[:, None] + 1e-4)


def by_rows(f, x):
    return f(x), vmap(jacrev(f))(x).norm(dim=(1, 2))


def by_sweeps(f, x):
    J = jn.linearize(f, x)
    return J.output, J.dense().norm(dim=(1, 2))


def by_pairs(f, x):
    J = jn.linearize(f, x)
    return J.output, jn.SchattenPenalty(1.0, p=2, reduction="none")(J)


@pytest.mark.parametrize("norm", [by_sweeps, by_pairs])
def test_lipsnet(norm):
    theirs, ours, x = Policy(by_rows).to(F64), Policy(norm).to(F64), torch.randn(5, 6, dtype=F64)
    torch.testing.assert_close(ours(x), theirs(x))
    target = torch.randn(5, 2, dtype=F64)
    expected = gradient((theirs(x) - target).square().mean(), theirs)
    assert_near(gradient((ours(x) - target).square().mean(), ours), expected, 1e-6)
    with torch.no_grad():  # as it acts
        torch.testing.assert_close(ours(x), theirs(x))
