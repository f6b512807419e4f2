"""Batch norm in training: pseudo-inference for the Jacobian, the ordinary gradient for the loss."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jacnorm as jn
from jacnorm.engines.batchnorm import Flowing

ENGINES = ["layerwise", "autograd"]


def net(activation=nn.ReLU):
    torch.manual_seed(0)
    first, last = nn.BatchNorm2d(4), nn.BatchNorm1d(5)
    for norm in (first, last):  # a factor of one could be forgotten
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    layers = [nn.Conv2d(2, 4, 3), first, activation(), nn.Flatten(), nn.Linear(64, 5), last]
    return nn.Sequential(*layers).double()


@pytest.fixture
def x():
    return torch.randn(4, 2, 6, 6, dtype=torch.float64)


def frozen_forward(parameters, x, z, flowing):
    """The net at z with the statistics of x, by hand."""

    def norm(a, b, name):
        over = [0] if a.dim() == 2 else [0, 2, 3]
        mean, var = a.mean(over, keepdim=True), a.var(over, correction=0, keepdim=True)
        if not flowing:
            mean, var = mean.detach(), var.detach()
        scale, shift = (parameters[f"{name}.{k}"].view(mean.shape) for k in ("weight", "bias"))
        return [(t - mean) / torch.sqrt(var + 1e-5) * scale + shift for t in (a, b)]

    def linear(t):
        return F.linear(t.flatten(1), parameters["4.weight"], parameters["4.bias"])

    a, b = (F.conv2d(t, parameters["0.weight"], parameters["0.bias"]) for t in (x, z))
    a, b = norm(a, b, "1")
    a, b = norm(linear(F.relu(a)), linear(F.relu(b)), "5")
    return b


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("convention", ["fixed", "flowing"])
@pytest.mark.parametrize("times", [1, 2])  # the second run takes the fast path
def test_value_and_gradient_in_both_conventions(x, engine, convention, times):
    model = net()
    for _ in range(times):
        J = jn.linearize(model, x, engine=engine, batch_norm=convention)
    u = torch.randn_like(J.output)
    actual = J.vjp(u)
    actual.square().sum().backward()

    parameters = {k: p.detach().clone().requires_grad_() for k, p in model.named_parameters()}
    z = x.clone().requires_grad_()
    output = frozen_forward(parameters, x, z, flowing=convention == "flowing")
    (expected,) = torch.autograd.grad(output, z, u, create_graph=True)
    torch.testing.assert_close(actual, expected)
    expected.square().sum().backward()
    for name, p in model.named_parameters():
        want = parameters[name].grad
        got = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(got, torch.zeros_like(p) if want is None else want, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("convention", ["fixed", "flowing"])
def test_only_flowing_ignores_the_scale_of_the_weights_before(x, convention):
    """Batch norm undoes that scale, so moving along the weights must not change the penalty."""
    model = net()
    J = jn.linearize(model, x, batch_norm=convention)
    jn.AnalyticPenalty(weight=1.0)(J).backward()
    weight = model[0].weight
    along = float((weight.grad * weight.detach()).sum() / (weight.grad.norm() * weight.detach().norm()))
    assert abs(along) < 1e-3 if convention == "flowing" else along > 0.05


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU])
def test_the_loss_trains_as_without_us(x, engine, activation):
    if activation is nn.SiLU:
        engine = "auto"
    ours, plain = net(activation), net(activation)
    for _ in range(3):
        J = jn.linearize(ours, x, engine=engine)
        ours.zero_grad()
        J.output.square().sum().backward()
        plain.zero_grad()
        plain(x).square().sum().backward()
        torch.testing.assert_close(
            [p.grad for p in ours.parameters()], [p.grad for p in plain.parameters()], rtol=1e-10, atol=1e-12
        )
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
def test_penalty_leaves_running_statistics_alone(x, engine):
    model = net()
    J = jn.linearize(model, x, engine=engine)
    before = copy.deepcopy(model.state_dict())
    J.dense(), J.jvp(x)
    (jn.SpectralPenalty(iterations=3)(J) + jn.FrobeniusPenalty()(J)).backward()
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


@pytest.mark.parametrize("engine", ENGINES)
def test_no_sample_sees_another(x, engine):
    J = jn.linearize(net(), x, engine=engine)
    u = torch.randn_like(J.output)
    u[1:] = 0
    assert J.vjp(u)[0].any()
    assert not J.vjp(u)[1:].any()


@pytest.mark.parametrize("shape", [(5, 3), (4, 2, 3), (3, 2, 2, 3)])
def test_what_flows_through_a_variance_that_is_known(shape):
    def inverse_std(z):
        with torch.no_grad():
            over = [axis for axis in range(z.dim()) if axis != 1]
            known = torch.rsqrt(z.var(over, correction=0) + 1e-3)
        return Flowing.apply(known, z, z.detach().mean(over), 1e-3)

    z = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(inverse_std, z)
    assert torch.autograd.gradgradcheck(inverse_std, z)


def test_a_batch_too_small_to_normalize_is_named():
    with pytest.raises(jn.ModelError, match="more than 1 value per channel"):
        jn.linearize(nn.BatchNorm1d(3), torch.randn(1, 3))


@pytest.mark.parametrize("convention", ["fixed", "flowing"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_stays_in_the_layerwise_engine(x, convention, dtype):
    exact = jn.spectral_norm(jn.linearize(net(), x)).sigma
    J = jn.linearize(net().to(dtype), x.to(dtype), batch_norm=convention)
    assert J.engine == "layerwise"
    part = J.subset(torch.tensor([0, 1]))
    assert part.output.dtype == dtype
    for found, expected in ((J, exact), (part, exact[:2])):
        torch.testing.assert_close(jn.spectral_norm(found).sigma.double(), expected, rtol=0.05, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_small_variance_in_half_precision(x, dtype):
    """Cubed, as the gradient has it, 1/√(var + ε) is beyond the range of float16."""

    def gradient(of, images):
        penalty = jn.SpectralPenalty(1.0, iterations=30)
        penalty(jn.linearize(of, images)).backward()
        return of[0].weight.grad.double()

    small = net()
    with torch.no_grad():
        small[0].weight *= 0.01
        small[0].bias.zero_()  # beside it the rest would be rounded away
        small = small.to(dtype).double()  # the same numbers in both
    images = x.to(dtype)
    expected, found = gradient(copy.deepcopy(small), images.double()), gradient(small.to(dtype), images)
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("running", [True, False], ids=["running statistics", "none"])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_samples_at_all_are_normalized(x, engine, running):
    """A model may send each part of its batch another way, and one of them may be empty."""

    class Parted(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.BatchNorm2d(2)
            self.second = nn.BatchNorm2d(2, track_running_stats=running)
            self.last = nn.Linear(72, 3)

        def forward(self, x):
            return self.last(torch.cat([self.first(x[:4]), self.second(x[4:])]).flatten(1))

    parted = Parted().double()
    dense = jn.linearize(nn.BatchNorm2d(2).double(), x).dense()  # which all samples are sent through
    expected = parted.last.weight @ dense.flatten(2).transpose(1, 2).reshape(4, 72, 72)
    torch.testing.assert_close(jn.linearize(parted, x, engine=engine).dense(), expected)
