"""Both engines against autograd's dense Jacobian on every case: products, and gradients of them."""

import pytest
import torch
import torch.nn.functional as F
from agreement import Behind, assert_gradients, assert_products
from cases import CASES, LAYERS, NETS
from oracles import assert_near, dense

import jacnorm as jn

# In the other engine a call is as good as any: autograd differentiates them all.
BOTH_ENGINES = [(case, "layerwise") for case in CASES] + [(case, "autograd") for case in NETS + LAYERS]


@pytest.mark.parametrize(("case", "engine"), BOTH_ENGINES, ids=str)
def test_products_and_their_gradients(case, engine):
    for batch_norm in case.conventions:
        model, x = case.make()
        model = Behind(model, x)
        D = dense(model, x, flowing=batch_norm == "flowing")
        for _ in range(2):  # examined, then known
            asked = "auto" if engine == "layerwise" else engine
            J = jn.linearize(model, x, engine=asked, batch_norm=batch_norm)
            assert J.engine == engine, J.reason
            assert "report" not in (J.reason or "")  # no rule was found wrong, and served by autograd instead
            assert_products(J, D, 1e-9)
        assert_gradients(J, D, model, 1e-8)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_is_the_models_and_a_second_run_gives_the_same(case):
    model, x = case.make()
    expected = model(x.clone())
    first = jn.linearize(model, x)
    again = jn.linearize(model, x)  # now known, so without autograd's graph
    torch.testing.assert_close(first.output, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(first.output, again.output)
    u = torch.randn_like(expected)
    torch.testing.assert_close(first.vjp(u), again.vjp(u), rtol=1e-12, atol=1e-12)
    assert_near(again.dense(), dense(model, x), 1e-9)


@pytest.mark.filterwarnings("ignore:.*uint8 condition")  # old code, which PyTorch still runs
def test_a_condition_of_bytes():
    model, x = (lambda x: torch.where((x > 0).to(torch.uint8), x, 0.1 * x)), torch.randn(3, 4)
    J = jn.linearize(model, x)
    assert J.engine == "layerwise"
    torch.testing.assert_close(J.dense(), dense(model, x))


SQUARE, VECTOR = torch.randn(4, 4).double(), torch.randn(4).double()
MASK = torch.tensor([True, False, True, True])
SPELLINGS = {
    "addmm": lambda x: torch.addmm(VECTOR, mat1=x.tanh(), mat2=SQUARE),
    "where": lambda x: torch.where(MASK, input=x.tanh(), other=x.sin()),
    "where of a piecewise linear model": lambda x: torch.where(MASK, input=x, other=2 * x),
    "where as a method": lambda x: x.tanh().where(condition=MASK, other=VECTOR),
    "where of a condition alone": lambda x: x * len(torch.where(x)[0]),
    "layer_norm": lambda x: F.layer_norm(input=x, normalized_shape=(4,)),
    "torch.layer_norm": lambda x: torch.layer_norm(x, (4,), cudnn_enable=False),
    "torch.group_norm": lambda x: torch.group_norm(x, 2, cudnn_enabled=False),
    "torch.batch_norm": lambda x: torch.batch_norm(
        x, None, None, running_mean=VECTOR, running_var=VECTOR.exp(), **BATCH_NORM
    ),
    "softmax": lambda x: torch.softmax(input=x, axis=1),
    "cat": lambda x: torch.cat(tensors=[x, x.tanh()], axis=1),
    "lerp": lambda x: torch.lerp(input=x, end=VECTOR, weight=0.3),
}
BATCH_NORM = {"training": False, "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": False}


@pytest.mark.parametrize("name", SPELLINGS)
def test_calls_by_keywords(name):
    """Also at the third visit, when it is known that the layerwise engine cannot take the model."""
    model, x = SPELLINGS[name], torch.randn(3, 4, dtype=torch.float64)
    for _ in range(3):
        J = jn.linearize(model, x)
        assert "report" not in (J.reason or "")
        torch.testing.assert_close(J.output, model(x))
        torch.testing.assert_close(J.dense(), dense(model, x))


def test_conversions_go_there_and_come_back():
    x = torch.randn(3, 4, dtype=torch.float64)
    J = jn.linearize(lambda x: 2 * x.float().to(torch.float32).type_as(x), x)
    assert J.engine == "layerwise"
    assert [step.name for step in J.tape.steps] == ["float", "type_as", "mul"]
    torch.testing.assert_close(J.dense(), 2 * torch.eye(4).double().expand(3, 4, 4))
