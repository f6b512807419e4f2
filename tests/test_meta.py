"""On the meta device there are shapes and no values: what would be made on another device is found there."""

import pytest
import torch
from agreement import ways
from torch import nn

import jacnorm as jn

NETS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 4)), (3, 6)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.GroupNorm(2, 4),
            nn.AvgPool2d(2),
            nn.Flatten(),
        ),
        (3, 2, 6, 6),
    ),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, "gelu", batch_first=True),
        (3, 5, 8),
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_products_and_gradients_stay_on_the_device(name):
    make, shape = NETS[name]
    model, x = make().to("meta"), torch.empty(shape, device="meta")
    for _ in range(2):
        J = jn.linearize(model, x)
        assert (J.engine, J.reason) == ("layerwise", None)
    u, v = torch.empty(J.output_shape, device="meta"), torch.empty(J.input_shape, device="meta")
    assert J.jvp(v).shape == u.shape
    assert J.vjp(u).shape == v.shape
    for way, value in ways(J, u, v):
        found = torch.autograd.grad(value, model.parameters(), retain_graph=True, allow_unused=True)
        assert {g.device.type for g in found if g is not None} == {"meta"}, way


def test_what_has_no_values_is_not_held_for_verified():
    model = nn.Linear(3, 3).to("meta")
    assert not jn.linearize(model, torch.empty(2, 3, device="meta")).verified
