"""Recurrent layers run by rules. (`tests/cases` holds products and gradients to autograd.)"""

import pytest
import torch
from cases import NETS
from torch import nn

import jacnorm as jn
from jacnorm import UnsupportedModelError

RECURRENT = [case for case in NETS if "lstm" in case.name or "gru" in case.name or "rnn" in case.name]


@pytest.mark.parametrize("case", [c for c in RECURRENT if "projection" not in c.name], ids=str)
def test_it_has_a_rule_and_the_numbers_of_pytorchs_layer(case):
    model, x = case.make()
    J = jn.linearize(model, x)
    assert J.reason is None
    torch.testing.assert_close(J.output, model(x), rtol=0, atol=1e-14)
    weights = list(model.parameters())
    ours, theirs = (torch.autograd.grad(y.square().sum(), weights) for y in (J.output, model(x)))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: nn.LSTM(3, 4, proj_size=2).double(), "proj_size="),
    ],
)
def test_what_has_no_rule_says_so(make, why):
    layer = make()
    x = torch.randn(2, 5, 3, dtype=next(layer.parameters()).dtype)
    assert why in jn.linearize(lambda x: layer(x.transpose(0, 1))[0][-1], x).reason


def test_a_packed_sequence_goes_by_autograd():
    layer = nn.LSTM(3, 4).double()

    def model(x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]), batch_first=True)
        return layer(packed)[1][0][0]

    x = torch.randn(2, 4, 3, dtype=torch.float64)
    J = jn.linearize(model, x)
    assert J.reason is not None
    assert "lstm (packed sequences)" in J.reason
    expected = torch.autograd.functional.jvp(model, x, x)[1]
    torch.testing.assert_close(J.jvp(x), expected)


def test_frozen_weights_get_no_gradient():
    layer = nn.GRU(3, 4, batch_first=True).double()
    layer.weight_hh_l0.requires_grad_(False)
    J = jn.linearize(lambda x: layer(x)[0][:, -1], torch.randn(2, 4, 3, dtype=torch.float64))
    (J.output.sum() + jn.SpectralPenalty(0.1)(J)).backward()
    assert layer.weight_hh_l0.grad is None
    assert layer.weight_ih_l0.grad.any()


def test_the_loss_is_differentiated_once():
    layer = nn.RNN(3, 4, batch_first=True)
    J = jn.linearize(lambda x: layer(x)[0][:, -1], torch.randn(2, 4, 3))
    with pytest.raises(UnsupportedModelError, match="differentiated twice"):
        torch.autograd.grad(J.output.sum(), layer.weight_ih_l0, create_graph=True)
