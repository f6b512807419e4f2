"""Sweeps in half precision: the loss is untouched, and the penalty's gradient points where it did."""

import copy

import pytest
import torch
import torch.nn.functional as F
from oracles import gradient
from torch import nn

import jacnorm as jn
from jacnorm.errors import InputError
from jacnorm.pytorch import half

HALF = torch.bfloat16


@pytest.fixture
def pays(monkeypatch):
    """Whatever the machine: right numbers do not depend on speed."""
    monkeypatch.setattr("jacnorm.recording.half_pays", lambda *_: True)


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + y + self.narrow(F.gelu(self.wide(x)))


def convolutions():
    layers = [nn.Conv2d(8, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 16, 2, 2),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 64, 10)), torch.randn(4, 8, 8, 8)


def tokens():
    return nn.Sequential(Block(), Block(), nn.Flatten(), nn.Linear(64 * 9, 10)), torch.randn(4, 9, 64)


def dense():
    return nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10)), torch.randn(4, 96)


NETS = pytest.mark.parametrize("make", [convolutions, tokens, dense])
PENALTIES = pytest.mark.parametrize(
    "penalty",
    [
        jn.SpectralPenalty(1.0),
        jn.SpectralPenalty(1.0, h="square"),
        jn.FrobeniusPenalty(1.0),
        jn.SchattenPenalty(1.0),
        jn.GradientPenalty(1.0, h="square"),
        jn.MarginPenalty(1.0, h=lambda r: (-r).exp()),
    ],
    ids=str,
)


def cosine(a, b):
    return float(F.cosine_similarity(a.double(), b.double(), dim=0))


@NETS
@PENALTIES
def test_the_gradient_of_a_penalty_points_where_it_did(make, penalty, pays):
    torch.manual_seed(0)
    net, x = make()
    net.eval()
    index, found = torch.arange(4), {}
    for precision in (None, HALF):
        J = jn.linearize(net, x, precision=precision)
        value = copy.deepcopy(penalty)(J, index=index, labels=J.output.argmax(1))
        found[precision] = value, gradient(value, net)
    assert found[HALF][1].dtype == torch.float32
    assert found[HALF][0].item() == pytest.approx(found[None][0].item(), rel=0.02)
    assert 0.999 < cosine(found[None][1], found[HALF][1]) < 1 - 1e-9  # 1 if nothing ran in half precision


@NETS
def test_the_loss_and_its_gradient_stay_as_they_are(make, pays):
    torch.manual_seed(0)
    net, x = make()
    net.eval()
    output = net(x)
    J = jn.linearize(net, x, precision=HALF)
    torch.testing.assert_close(J.output, output)
    weights = torch.randn_like(output)
    expected = gradient((output * weights).sum(), net)
    torch.testing.assert_close(gradient((J.output * weights).sum(), net), expected)


@NETS
def test_products_come_back_in_float32_and_can_be_differentiated(make, pays):
    torch.manual_seed(0)
    net, x = make()
    net.eval()
    v, found = torch.randn_like(x), {}
    for precision in (None, HALF):
        w = jn.linearize(net, x, precision=precision).jvp(v)
        assert w.dtype == torch.float32
        found[precision] = w.detach(), gradient(w.square().sum(), net)
    assert 1e-5 < (found[HALF][0] - found[None][0]).norm() / found[None][0].norm() < 0.02
    assert cosine(found[None][1], found[HALF][1]) > 0.999


def test_small_sums_stay_in_float32(pays):
    net, x = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), torch.randn(3, 10)
    v = torch.randn_like(x)
    expected = jn.linearize(net, x).jvp(v)
    torch.testing.assert_close(jn.linearize(net, x, precision=HALF).jvp(v), expected, rtol=0, atol=0)


def test_a_part_of_the_batch_has_the_same_precision(pays):
    net, x = dense()
    v = torch.randn_like(x)
    J = jn.linearize(net, x, precision=HALF)
    part = J.subset(torch.tensor([0, 2])).jvp(v[[0, 2]])
    torch.testing.assert_close(part, J.jvp(v)[[0, 2]], rtol=1e-3, atol=1e-3)
    assert (part - jn.linearize(net, x).jvp(v)[[0, 2]]).abs().max() > 1e-5


@pytest.mark.parametrize(
    ("precision", "x", "match"),
    [
        (torch.float32, torch.randn(2, 96), r"torch\.float32: choose torch\.bfloat16"),
        ("bfloat16", torch.randn(2, 96), "'bfloat16': choose"),
        (
            HALF,
            torch.randn(2, 96, dtype=torch.float64),
            "for models in float32, and x has dtype torch.float64",
        ),
    ],
)
def test_what_cannot_be_is_refused(precision, x, match):
    with pytest.raises(InputError, match=match):
        jn.linearize(dense()[0], x, precision=precision)


@pytest.mark.parametrize(
    ("trial", "match"),
    [
        (
            "raise RuntimeError('could not create a primitive')",
            "does not work .*could not create a primitive",
        ),
        ("import os; os.abort()", "does not work on this machine"),
        ('print(\'{"wrong": 0.5, "speed": 3.0}\')', "off by 50%"),
        ('print(\'{"wrong": 0.001, "speed": 0.5}\')', "no faster .*0.50 times"),
    ],
)
def test_a_machine_that_does_not_gain_stays_in_float32_and_says_so(trial, match, monkeypatch):
    monkeypatch.setattr(half, "TRIAL", trial)
    monkeypatch.setattr("jacnorm.recording.half_pays", half.half_pays.__wrapped__)
    net, x = dense()
    v = torch.randn_like(x)
    with pytest.warns(UserWarning, match=match):
        J = jn.linearize(net, x, precision=HALF)
    torch.testing.assert_close(J.jvp(v), jn.linearize(net, x).jvp(v), rtol=0, atol=0)


def test_the_trial_runs_where_torch_does(monkeypatch):
    """Whatever it finds, it finds out by measuring."""
    why = half._why_not("bfloat16", "cpu")
    assert why is None or "on this machine" in why
    assert "ModuleNotFoundError" not in (why or "")
