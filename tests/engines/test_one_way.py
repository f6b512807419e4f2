"""Calls without a rule whose backward pass autograd cannot differentiate: it leaves out parts in silence."""

import pytest
import torch
from torch import Tensor, nn

import jacnorm as jn

BACKWARD = {
    "whole": lambda c, x: 3 * x**2 * c,
    "detached": lambda c, x: 3 * x**2 * c.detach(),
    "half detached": lambda c, x: 3 * x**2 * (c + c.detach()) / 2,
}


def _cube(name: str):
    @torch.library.custom_op(f"jacnorm_test::cube_{name.replace(' ', '_')}", mutates_args=())
    def cube(x: Tensor) -> Tensor:
        return x**3

    cube.register_autograd(
        lambda ctx, c: BACKWARD[name](c, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return cube


CUBES = {name: _cube(name) for name in BACKWARD}


@pytest.mark.parametrize("name", BACKWARD)
def test_products_of_a_kernel_are_right_or_refused_by_its_name(name):
    cube, layer = CUBES[name], nn.Linear(4, 3).double()
    x, v, u = (torch.randn(2, n, dtype=torch.float64) for n in (4, 4, 3))
    for _ in range(3):  # verified, known, verified again
        J = jn.linearize(lambda z: layer(cube(z)), x)
        with torch.no_grad():
            torch.testing.assert_close(J.vjp(u), (u @ layer.weight) * 3 * x**2)
        if name == "whole":
            assert J.engine == "layerwise"
            torch.testing.assert_close(J.jvp(v), layer(3 * x**2 * v) - layer.bias)
            continue
        for use in (lambda J: J.jvp(v), jn.SpectralPenalty(0.1), jn.FrobeniusPenalty(0.1)):
            with pytest.raises(jn.UnsupportedModelError, match=r"look at torch\.ops\.jacnorm_test\.cube_"):
                use(J)
        assert "cube_" in J.reason


def test_an_ordinary_call_without_a_rule_is_a_step_of_its_own():
    head = nn.Linear(4, 2)
    J = jn.linearize(lambda x: head(torch.i0(x)), torch.randn(3, 4))
    assert J.engine == "layerwise"
    assert J.reason == "by autograd: i0 (it has no rule)"
