"""Random smooth nets: J, its products, penalties and their gradients are autograd's."""

import pytest
import torch
from agreement import ways
from cases.blocks import KINDS, TOKENS, WIDTH, Block, Skip, linear
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from oracles import dense, gradient, mean_sigma, pull, push, top_left
from torch import nn

import jacnorm as jn

TOLERANCE, FLOOR = 1e-9, 1e-3


class Twice(nn.Module):
    """The same weights at two places."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return self.body(0.5 * self.body(x))


class Times(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return self.left(x) * self.right(x)


@st.composite
def blocks(draw, depth):
    """Any map from (B, TOKENS, WIDTH) to the same."""
    kind = draw(st.sampled_from([*KINDS, *(("skip", "twice", "times") if depth else ())]))
    if kind in KINDS:
        block = KINDS[kind][draw(st.sampled_from(sorted(KINDS[kind])))]()
        block.is_rare = kind == "rare"
    elif kind == "times":
        block = Times(draw(stacks(depth - 1)), draw(stacks(depth - 1)))
    else:
        block = (Skip if kind == "skip" else Twice)(draw(stacks(depth - 1)))
    if draw(st.integers(0, 7)) == 7:
        block.requires_grad_(False)
    return block


@st.composite
def stacks(draw, depth=2):
    return nn.Sequential(*draw(st.lists(blocks(depth), min_size=1, max_size=4 if depth == 2 else 2)))


ENDS = {
    "tokens": nn.Identity,
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(TOKENS * WIDTH, 3)),
    "mean": lambda: Block("mean", lambda b, x: b.a(x.mean(1)), a=linear(3)),
    "last": lambda: Block("last", lambda b, x: b.a(x[:, -1]), a=linear(2)),
    "number": lambda: Block("number", lambda b, x: torch.tanh(b.a(x)).sum((1, 2)), a=linear(1)),
}


@st.composite
def smooth_nets(draw):
    seed = draw(st.integers(0, 2**20))
    torch.manual_seed(seed)
    net = nn.Sequential(draw(stacks()), ENDS[draw(st.sampled_from(sorted(ENDS)))]())
    with torch.no_grad():
        for parameter in net.parameters():  # norms have weights that can be mistaken
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.double().train(draw(st.booleans()))


def near(actual, expected, scale=0.0):
    """Relative to what is expected, and to the size of what was added up."""
    actual, expected = actual.detach(), expected.detach().reshape(actual.shape)
    distance, size = float((actual - expected).norm()), float(expected.norm()) + scale + FLOOR
    assert distance <= TOLERANCE * size, f"{distance:.1e}, of {size:.1e}"


def smooth_net_agrees(model):
    """False where there is nothing to compare with; raises where something differs."""
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    output, D = model(x.clone()).detach(), dense(model, x)
    output = output.flatten(1) if output.dim() > 1 else output[:, None]
    scale = float(D.detach().norm())
    if not scale + float(output.norm()) < 1e6:  # cubes of cubes overflow
        return False
    u, v = torch.randn_like(output), torch.randn(2, D.shape[2], dtype=torch.float64)

    def product(u, v):
        return torch.einsum("bo,boi,bi->", u, D, v)

    for _ in range(2):  # examined, then known
        J = jn.linearize(model, x)
        assert J.engine == "layerwise", J.reason
        assert J.reason is None or any(getattr(m, "is_rare", False) for m in model.modules()), J.reason
        near(J.output, output)
        near(J.dense(), D)
    if scale < TOLERANCE:  # a constant, as the mean of tokens after instance norm: rounding errors alone
        return True
    shaped_u, shaped_v = u.view(J.output_shape), v.view(J.input_shape)
    wanted, size = gradient(product(u, v), model), scale * float(u.norm() * v.norm())
    if not torch.isfinite(wanted).all():  # PyTorch's second derivative of Mish is NaN at 800
        assert torch.isfinite(gradient((J.jvp(shaped_v) * shaped_u).sum(), model)).all()
        return False
    near(J.jvp(shaped_v), push(D, v), scale)
    near(J.vjp(shaped_u), pull(D, u), scale)
    for _, value in ways(J, shaped_u, shaped_v):
        near(gradient(value, model), wanted, size)
    projected = jn.FrobeniusPenalty(1.0, seed=5).random(J.output_shape, J).reshape(u.shape)
    projected = projected / projected.norm(dim=1, keepdim=True)
    squared = pull(D, projected).square().sum() * u.shape[1] / 2
    penalty = jn.FrobeniusPenalty(1.0, seed=5)(J)
    near(penalty, squared)
    near(gradient(penalty, model), gradient(squared, model), scale**2)

    S = torch.linalg.svdvals(D.detach())
    first, second = S[:, 0], S[:, 1] if S.shape[1] > 1 else 0 * S[:, 0]
    if bool((first - second > 1e-2 * first + FLOOR).all()):  # else it has no gradient
        sigma = mean_sigma(D)
        wanted = gradient(sigma, model)
        stored = jn.SpectralPenalty(1.0)
        stored.u = top_left(D)
        for penalty in (jn.AnalyticPenalty(1.0)(J), stored(J, index=torch.arange(2))):
            near(penalty, sigma)
            near(gradient(penalty, model), wanted, scale)
    return True


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in KINDS[kind]])
def test_each_smooth_block(kind, name):
    block = KINDS[kind][name]()
    block.is_rare = kind == "rare"
    assert smooth_net_agrees(nn.Sequential(linear(), block, ENDS["linear"]()).double())


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(smooth_nets())
def test_smooth(model):
    assume(smooth_net_agrees(model))


@pytest.mark.long
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(smooth_nets())
def test_five_thousand_smooth(model):
    assume(smooth_net_agrees(model))
