"""What docs/j-v-in-training.md says of torch.func.jvp is so."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import jacnorm as jn

EXAMPLE = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "j_v_in_training.py"))
DOUBLE = {"dtype": torch.float64}


def theirs(model, x, v):
    return torch.func.jvp(model, (x,), (v,))[1]


def ours(model, x, v):
    return jn.linearize(model, x).jvp(v)


def slopes(model, x, way):
    """Of ‖J v‖² along one direction of the weights: by the gradient, and by finite differences."""
    generator = torch.Generator().manual_seed(1)
    weights = list(model.parameters())
    v, *direction = (torch.randn(t.shape, generator=generator, **DOUBLE) for t in (x, *weights))
    gradient = torch.autograd.grad(way(model, x, v).square().sum(), weights, allow_unused=True)
    slope = sum((g * d).sum() for g, d in zip(gradient, direction, strict=True) if g is not None)
    values = []
    for length in (1e-6, -1e-6):
        with EXAMPLE["moved"](model, direction, length):
            values.append(theirs(model, x, v).square().sum().item())
    return slope.item(), (values[0] - values[1]) / 2e-6


@pytest.mark.parametrize(
    ("norm", "right"),
    [
        (nn.InstanceNorm2d(8, affine=True), False),
        (nn.LayerNorm([8, 4, 4]), False),
        (nn.RMSNorm([8, 4, 4]), True),
        (nn.GroupNorm(2, 8), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_gradient_through_a_product(norm, right):
    """A failure of the second line may be good news: correct the page then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 3, 3)).double()
    x = torch.randn(4, 3, 6, 6, **DOUBLE)
    for way, is_right in ((ours, True), (theirs, right)):
        found, expected = slopes(model, x, way)
        assert (abs(found - expected) < 1e-5 * abs(expected)) == is_right


@pytest.mark.parametrize("loss", EXAMPLE["LOSSES"])
def test_the_detached_steps_have_the_same_gradient(loss):
    torch.manual_seed(0)
    model, samples = EXAMPLE["DiT"](32, 2, 2).double(), EXAMPLE["batch"](**DOUBLE)
    gradients = [
        torch.autograd.grad(EXAMPLE["LOSSES"][loss](way, False, model, *samples), list(model.parameters()))
        for way in EXAMPLE["WAYS"].values()
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_fused_attention_has_no_forward_derivative():
    model, samples = EXAMPLE["DiT"](32, 2, 1), EXAMPLE["batch"]()
    inputs = samples[0], *samples[2:]
    with (
        sdpa_kernel(SDPBackend.FLASH_ATTENTION),
        pytest.raises(NotImplementedError, match="forward AD with _scaled_dot_product_flash"),
    ):
        torch.func.jvp(model, inputs, inputs)
