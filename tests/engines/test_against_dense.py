"""Both engines against torch.func on every case: products, transposes, and the dense Jacobian."""

import pytest
import torch
import torch.nn.functional as F
from cases import CASES, Case, dense_oracle
from torch import nn

import jacnorm as jn


def frozen_batch_norm(model, x):
    """The same model in evaluation mode, with the statistics of this batch: the paper's pseudo-inference."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for m in norms:
        m.momentum = 1.0
        m.register_forward_hook(_use_biased_variance)
    model.train()(x)
    return model.eval()


def _use_biased_variance(module, inputs, _):
    if module.training:
        over = [a for a in range(inputs[0].dim()) if a != 1]
        module.running_var.copy_(inputs[0].detach().var(over, correction=0))


def oracle(case: Case):
    model, x = case.make()
    if case.training and any(isinstance(m, nn.BatchNorm2d) for m in model.modules()):
        model = frozen_batch_norm(model, x)
    return dense_oracle(model, x)


@pytest.mark.parametrize(
    ("case", "engine"),
    [(case, engine) for case in CASES for engine in ("auto", "autograd")],
    ids=str,
)
def test_products_are_the_dense_jacobians(case, engine):
    model, x = case.make()
    expected = oracle(case)
    J = jn.linearize(model, x, engine=engine)
    assert J.engine == (case.engine if engine == "auto" else "autograd"), J.reason
    v, u = torch.randn_like(x), torch.randn_like(J.output)
    jv, ju = J.jvp(v), J.vjp(u)
    assert jv.shape == J.output.shape
    assert ju.shape == x.shape
    close = {"rtol": 1e-9, "atol": 1e-9 * max(1.0, float(expected.abs().max()))}
    torch.testing.assert_close(
        jv.reshape(len(x), -1), torch.einsum("boi,bi->bo", expected, v.flatten(1)), **close
    )
    torch.testing.assert_close(
        ju.reshape(len(x), -1),
        torch.einsum("boi,bo->bi", expected, u.reshape(len(x), -1)),
        **close,
    )
    torch.testing.assert_close(J.dense(), expected, **close)
    torch.testing.assert_close((jv * u).sum(), (v * ju).sum(), rtol=1e-10, atol=1e-10)


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


@pytest.mark.filterwarnings("ignore:.*uint8 condition")  # old code, which PyTorch still runs
def test_a_condition_of_bytes():
    model, x = (lambda x: torch.where((x > 0).to(torch.uint8), x, 0.1 * x)), torch.randn(3, 4)
    J = jn.linearize(model, x)
    assert J.engine == "layerwise"
    torch.testing.assert_close(J.dense(), dense_oracle(model, x))


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
        torch.testing.assert_close(J.dense(), dense_oracle(model, x))


def test_conversions_go_there_and_come_back():
    x = torch.randn(3, 4, dtype=torch.float64)
    J = jn.linearize(lambda x: 2 * x.float().to(torch.float32).type_as(x), x)
    assert J.engine == "layerwise"
    assert [step.name for step in J.tape.steps] == ["float", "type_as", "mul"]
    torch.testing.assert_close(J.dense(), 2 * torch.eye(4).double().expand(3, 4, 4))
