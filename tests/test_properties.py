"""Random stacks of layers on images: whatever the pieces, J is autograd's, and so are gradients of uᵀJ v."""

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_gradients, assert_products
from cases.blocks import Skip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import dense
from torch import nn

import jacnorm as jn


class Concat(nn.Module):
    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return torch.cat([self.left(x), self.right(x)], 1)


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


ACTIVATIONS = {
    "relu": nn.ReLU,
    "relu_": lambda: Call(lambda x: (1 * x).relu_()),  # of a copy: autograd refuses it after another ReLU
    "leaky": lambda: nn.LeakyReLU(0.1),
    "prelu": nn.PReLU,
    "hardtanh": nn.Hardtanh,
    "abs": lambda: Call(torch.abs),
    "clamp_": lambda: Call(lambda x: (1 * x).clamp_(-0.3, 0.4)),
    "maxout": lambda: Call(lambda x: torch.maximum(x, -0.5 * x)),
    "flip": lambda: Call(lambda x: x.flip(1)),
    "scale": lambda: Call(lambda x: 0.5 * x - 1),
}
SMOOTH = {"gelu": nn.GELU, "tanh": nn.Tanh, "softplus": nn.Softplus}


@st.composite
def stages(draw, channels, size, depth=3, smooth=False):
    """A stack of layers from (channels, size, size); returns it with its output's channels and size."""
    layers = []
    kinds = ["conv", "pool", "avg", "norm", "act", "skip", "concat", "pad", "up"]
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(kinds))
        if kind == "conv":
            out, kernel = draw(st.integers(1, 3)), draw(st.integers(1, min(3, size)))
            stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, 1))
            layers.append(nn.Conv2d(channels, out, kernel, stride, padding))
            channels, size = out, (size + 2 * padding - kernel) // stride + 1
        elif kind in ("pool", "avg") and size >= 3:
            stride = draw(st.integers(1, 3))
            layers.append((nn.MaxPool2d if kind == "pool" else nn.AvgPool2d)(2, stride))
            size = (size - 2) // stride + 1
        elif kind == "norm":
            layers.append(nn.BatchNorm2d(channels))
            nn.init.uniform_(layers[-1].running_var, 0.5, 2)
        elif kind == "act":
            table = ACTIVATIONS | (SMOOTH if smooth else {})
            layers.append(table[draw(st.sampled_from(sorted(table)))]())
        elif kind == "skip" and depth:
            body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True))
            layers.append(Skip(body))
        elif kind == "concat" and depth:
            left, c1, s1 = draw(stages(channels, size, 0, smooth))
            layers.append(Concat(left, nn.Sequential(nn.AdaptiveAvgPool2d(s1), nn.Conv2d(channels, 1, 1))))
            channels, size = c1 + 1, s1
        elif kind == "pad" and size >= 2:
            mode = draw(st.sampled_from(["constant", "reflect", "replicate", "circular"]))
            layers.append(Call(lambda x, mode=mode: F.pad(x, (1, 0, 1, 0), mode)))
            size += 1
        elif kind == "up" and size <= 4:
            mode = draw(st.sampled_from(["nearest", "bilinear"]))
            layers.append(nn.Upsample(scale_factor=2, mode=mode))
            size *= 2
    return nn.Sequential(*layers), channels, size


@st.composite
def nets(draw, smooth=False):
    torch.manual_seed(draw(st.integers(0, 2**20)))
    body, channels, size = draw(stages(2, 5, smooth=smooth))
    head = draw(st.sampled_from(["linear", "image", "mean"]))
    if head == "linear":
        body = nn.Sequential(body, nn.Flatten(), nn.Linear(channels * size * size, 3))
    elif head == "mean":
        body = nn.Sequential(body, Call(lambda x: x.mean((2, 3))))
    return body.double().eval()


def agrees(model):
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    D = dense(model, x)
    for engine in ("layerwise", "autograd"):
        for _ in range(2):  # examined, then known
            J = jn.linearize(model, x, engine=engine)
            assert J.reason is None or engine == "autograd", J.reason
            assert_products(J, D, 1e-9)
        assert_gradients(J, D, model, 1e-8)


QUICK = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=150, **QUICK)
@given(nets())
def test_piecewise_linear(model):
    agrees(model)


@settings(max_examples=50, **QUICK)
@given(nets(smooth=True))
def test_any_differentiable(model):
    agrees(model)


@pytest.mark.long
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(nets(smooth=True))
def test_five_thousand(model):
    agrees(model)
