"""Models that cannot be served: what is wrong, and where."""

import re

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from zoo.critics import Diffusion

import jacnorm as jn


class Coupled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.relu(self.fc(x))
        x = x - x.mean(0)  # couples
        return self.fc(x)


class Logarithm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.log(torch.relu(self.fc(x)))
        return self.fc(x)


class Both(nn.Module):
    def forward(self, x):
        return x.exp(), x


class Asserts(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.fc(x)
        torch._assert(x.shape[1] == 5, "the width is wrong")  # as timm does
        return x


class PowerOfZero(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.fc(0 * x).abs() ** 1.5 + x


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


class OwnKernel(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return Kernel.apply(x, self.scale)


HERE = r"[^)]*test_problems.py:"


@pytest.mark.parametrize(
    ("model", "shape", "words", "calls"),
    [
        (Coupled(), (4,), rf"depends on the input of another.*first shows after sub \({HERE}", 5),
        (Logarithm(), (4,), rf"NaN or inf.*first shows after log \({HERE}", 4),
        (Asserts(), (4,), rf"AssertionError: the width is wrong\..*It failed here: {HERE}", 1),
        (
            nn.Sequential(nn.Linear(4, 6), nn.Linear(5, 6)),
            (4,),
            r"cannot be multiplied.*It failed here: layer 1\.$",
            1,
        ),
        (PowerOfZero(), (4,), r"penalty's gradient is NaN or inf in fc\.weight\. ", 5),
        (OwnKernel(), (4,), "backward pass of a layer cannot be differentiated.*replace the layer", 0),
        (Diffusion(), (1, 5, 5), r"missing 1 required positional argument: 't'.*def f\(x\): return", 0),
        (Both(), (4,), r"returned tuple with 0 of shape \(8, 4\).*Say which: output=0", 1),
        (nn.BatchNorm1d(4), (4,), "more than 1 value per channel", 0),
    ],
)
def test_problems(model, shape, words, calls):
    x = torch.randn(1 if isinstance(model, nn.BatchNorm1d) else 8, *shape)
    found = jn.doctor(model, x)
    assert not found.served
    assert re.search(words, found.problem), found.problem
    assert len(found.calls) == calls
    assert found.cost is None
    assert "Problem  " in str(found)


def test_what_is_no_input_at_all_is_an_error():
    with pytest.raises(jn.InputError, match="needs real inputs"):
        jn.doctor(nn.Flatten(), torch.ones(2, 1, 28, 28, dtype=torch.int64))
