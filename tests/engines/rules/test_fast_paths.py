"""Rules with a faster way of their own for large inputs: the same numbers as PyTorch's, and gradients."""

import pytest
import torch
import torch.nn.functional as F
from cases import CASES
from oracles import dense
from torch import nn

import jacnorm as jn
from jacnorm.engines.rules import maxpool, one_channel
from jacnorm.engines.rules.maxpool import TwoByTwo
from jacnorm.engines.rules.one_channel import Convolution, TransposedConvolution

# height, width, kernel, padding: odd and even sizes, oblong kernels, padding up to and beyond the kernel
SHAPES = [
    (8, 8, (5, 5), (2, 2)),
    (7, 10, (3, 3), (1, 1)),
    (9, 6, (2, 4), (0, 1)),
    (6, 6, (3, 3), (0, 0)),
    (6, 6, (3, 3), (2, 2)),
    (6, 6, (3, 3), (3, 3)),
    (5, 7, (1, 1), (0, 0)),
]


@pytest.mark.parametrize(("height", "width", "kernel", "padding"), SHAPES)
class TestOneChannel:
    def make(self, height, width, kernel):
        torch.manual_seed(0)
        x = torch.randn(3, 1, height, width, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(4, 1, *kernel, dtype=torch.float64, requires_grad=True)
        return x, weight, torch.randn(4, dtype=torch.float64, requires_grad=True)

    def test_convolution(self, height, width, kernel, padding):
        x, weight, bias = self.make(height, width, kernel)
        y, expected = Convolution.apply(x, weight, bias, padding), F.conv2d(x, weight, bias, padding=padding)
        torch.testing.assert_close(y, expected)
        u = torch.randn_like(y)
        ours, theirs = (torch.autograd.grad(z, (x, weight, bias), u) for z in (y, expected))
        torch.testing.assert_close(ours, theirs)

    def test_transposed_convolution(self, height, width, kernel, padding):
        x, weight, _ = self.make(height, width, kernel)
        u = torch.randn_like(F.conv2d(x, weight, padding=padding), requires_grad=True)
        y, expected = (
            TransposedConvolution.apply(u, weight, padding),
            F.conv_transpose2d(u, weight, padding=padding),
        )
        torch.testing.assert_close(y, expected)
        v = torch.randn_like(y)
        ours, theirs = (torch.autograd.grad(z, (u, weight), v) for z in (y, expected))
        torch.testing.assert_close(ours, theirs)

    def test_second_derivatives(self, height, width, kernel, padding):
        arguments = self.make(height, width, kernel)
        convolve = lambda *a: Convolution.apply(*a, padding)
        assert torch.autograd.gradgradcheck(convolve, arguments, fast_mode=True)


def test_two_by_two_pooling_with_many_ties():
    x = torch.randint(0, 3, (4, 3, 8, 6), dtype=torch.float64, requires_grad=True)
    ours, theirs = TwoByTwo.apply(x), F.max_pool2d(x, 2, return_indices=True)
    torch.testing.assert_close(ours, theirs)
    u = torch.randn_like(ours[0])
    torch.testing.assert_close(*(torch.autograd.grad(y, x, u) for y, _ in (ours, theirs)))


@pytest.mark.parametrize("case", [c for c in CASES if len(c.shape) == 3 and not c.training], ids=str)
def test_whatever_takes_them_is_right(case, fast_paths):
    model, x = case.make()
    D = dense(model, x)
    for engine in ("layerwise", "autograd"):
        torch.testing.assert_close(jn.linearize(model, x, engine=engine).dense(), D)


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_depthwise_convolutions_are_none_of_them(engine):
    """At the size of real images: their weight has one channel, their input has not."""
    layers = [nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model, x = nn.Sequential(*layers, nn.Linear(8, 3)), torch.randn(16, 8, 16, 16)
    torch.testing.assert_close(jn.linearize(model, x, engine=engine).output, model(x))


def net():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 3), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, 5)).double()


def gradients(model, x, penalty):
    model.zero_grad()
    J = jn.linearize(model, x)
    assert J.engine == "layerwise", J.reason
    (J.output.square().sum() + penalty(J)).backward()
    return [p.grad for p in model.parameters()], J.dense().detach()


@pytest.mark.parametrize("penalty", [jn.SpectralPenalty, jn.FrobeniusPenalty])
def test_a_network_gives_the_same_with_and_without_them(monkeypatch, penalty):
    model, x = net(), torch.randn(4, 1, 8, 8, dtype=torch.float64)
    plain = gradients(model, x, penalty(1.0))
    seen = []
    for room, kind in ((one_channel, Convolution), (one_channel, TransposedConvolution), (maxpool, TwoByTwo)):
        monkeypatch.setattr(room, "WORTHWHILE", 0)
        forward = kind.forward
        counted = staticmethod(lambda *a, forward=forward, kind=kind: seen.append(kind) or forward(*a))
        monkeypatch.setattr(kind, "forward", counted)
    torch.testing.assert_close(gradients(model, x, penalty(1.0)), plain)
    assert set(seen) == {Convolution, TransposedConvolution, TwoByTwo}
