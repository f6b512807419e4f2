"""What linearize promises beyond right products: errors, fall-back, no side effects."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jacnorm as jn
from jacnorm.engines.rules import RULES
from jacnorm.engines.rules.table import Rule
from jacnorm.lab.nets import MLP, LeNet


@pytest.mark.parametrize(
    ("model", "x", "error", "message"),
    [
        (MLP((4, 5, 3)), "images", jn.InputError, "must be a tensor, found str"),
        (MLP((4, 5, 3)), torch.ones(2, 4, dtype=torch.int64), jn.InputError, "dtype torch.int64"),
        (MLP((4, 5, 3)), torch.ones(2, 4, dtype=torch.bool), jn.InputError, "needs real inputs"),
        (MLP((4, 5, 3)), torch.tensor(1.0), jn.InputError, "first axis is the batch"),
        (MLP((4, 5, 3)), torch.empty(0, 4), jn.InputError, "must not be empty"),
        (nn.Linear(4, 3), torch.randn(4), jn.InputError, r"output has shape \(3,\) for a batch of 4"),
        (LeNet(), torch.randn(1, 28, 28), jn.ModelError, "pass x.unsqueeze"),
        (lambda x: x.sum(), torch.randn(2, 4), jn.InputError, r"output has shape \(\)"),
        (lambda x: x.sum(0), torch.randn(2, 4), jn.InputError, "first axis must be the batch"),
        (lambda x: (x, x), torch.randn(2, 4), jn.InputError, "returned tuple, not a tensor"),
        (lambda x: {"logits": x}, torch.randn(2, 4), jn.InputError, "returned dict"),
        (lambda x: x.argmax(1), torch.randn(2, 4), jn.InputError, "output has dtype torch.int64"),
        (lambda x: x / 0, torch.randn(2, 4), jn.NonFiniteError, "activation overflowed"),
        (nn.ReLU(), torch.full((2, 4), float("nan")), jn.NonFiniteError, "so has x itself"),
        (nn.Linear(4, 3), torch.randn(2, 5), jn.ModelError, "The model failed on x of shape"),
    ],
)
def test_bad_input(model, x, error, message):
    with pytest.raises(error, match=message) as caught:
        jn.linearize(model, x)
    assert isinstance(caught.value, jn.JacnormError)


def test_a_parameter_that_is_not_finite_is_named():
    model = MLP((4, 5, 3))
    nn.init.constant_(model[3].weight, float("inf"))
    with pytest.raises(jn.NonFiniteError, match=r"parameter '3.weight'"):
        jn.linearize(model, torch.randn(2, 4))


@pytest.mark.parametrize("engine", ["auto", "layerwise", "autograd"])
@pytest.mark.parametrize(
    "model",
    [
        lambda x: x - x.mean(0),
        lambda x: F.softmax(x, 0),
        lambda x: x.flip(0),
        lambda x: x.roll(1, 0),
        lambda x: x @ x.T,
        lambda x: x[torch.tensor([1, 0, 2, 3, 4, 5])],
        lambda x: x.view(-1, 2).relu().sum(0).expand(6, 2) + x[:, :2],
        lambda x: x.view(3, 2, 4).cumsum(1).view(6, 4),  # within pairs
    ],
)
def test_coupled_samples(model, engine):
    expected = (jn.CoupledSamplesError, jn.UnsupportedModelError)
    with pytest.raises(expected if engine == "layerwise" else jn.CoupledSamplesError):
        jn.linearize(model, torch.randn(6, 4), engine=engine)


def test_shapes_of_vectors():
    J = jn.linearize(MLP((4, 5, 3)), torch.randn(2, 4))
    with pytest.raises(jn.InputError, match=r"v has shape \(4,\).*the input, \(2, 4\)"):
        J.jvp(torch.ones(4))
    with pytest.raises(jn.InputError, match=r"u has shape \(2, 4\).*the output, \(2, 3\)"):
        J.vjp(torch.ones(2, 4))


@pytest.mark.parametrize("options", [{"engine": "fast"}, {"batch_norm": "frozen"}])
def test_bad_options(options):
    with pytest.raises(jn.InputError, match="choose"):
        jn.linearize(MLP((4, 5, 3)), torch.randn(2, 4), **options)


def test_layerwise_says_why_not():
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    with pytest.raises(jn.UnsupportedModelError, match="gelu has no piecewise linear rule"):
        jn.linearize(model, torch.randn(2, 4), engine="layerwise")
    assert jn.linearize(model, torch.randn(2, 4)).reason == "gelu has no piecewise linear rule"


class SquashedReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 7 * gradient * (x > 0)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: SquashedReLU.apply(x),
        lambda x: x + SquashedReLU.apply(2 * x),
        lambda x: F.relu(SquashedReLU.apply(x)) * 2,
    ],
)
def test_custom_autograd_functions_are_taken_at_their_word(model):
    x = torch.randn(3, 4, requires_grad=True)
    J = jn.linearize(model, x)
    assert J.engine == "autograd"
    assert "custom autograd function" in J.reason
    u = torch.randn(3, 4)
    (expected,) = torch.autograd.grad(model(x), x, u)
    torch.testing.assert_close(J.vjp(u), expected)


def test_a_wrong_rule_is_found_out(monkeypatch):
    """The first time, products are compared with autograd's: a wrong rule costs speed, not truth."""
    wrong = Rule("linear", lambda x: ((lambda v: 3 * v), (lambda u: 3 * u)))
    monkeypatch.setitem(RULES, "neg", wrong)
    x = torch.randn(2, 4)
    J = jn.linearize(lambda x: -x, x)
    assert J.engine == "autograd"
    assert "differ from autograd's" in J.reason
    torch.testing.assert_close(J.jvp(x), -x)


def test_a_tensor_changed_behind_a_view_goes_to_autograd():
    def model(x):
        y = 2 * x
        y[:, 0].mul_(5)  # changes y, through a view that is gone
        return y

    x = torch.randn(3, 4)
    J = jn.linearize(model, x)
    assert "in place through a view" in J.reason
    expected = torch.diag(torch.tensor([10.0, 2, 2, 2])).expand(3, 4, 4)
    torch.testing.assert_close(J.dense(), expected)


def test_a_new_path_through_the_model_is_noticed():
    class Sometimes(nn.Module):
        smooth = False

        def forward(self, x):
            return torch.tanh(x) if self.smooth else torch.relu(x)

    model, x = Sometimes(), torch.randn(3, 4)
    assert jn.linearize(model, x).engine == "layerwise"
    assert jn.linearize(model, x).engine == "layerwise"
    model.smooth = True
    J = jn.linearize(model, x)
    assert J.engine == "autograd"
    torch.testing.assert_close(J.dense(), torch.diag_embed(1 - torch.tanh(x) ** 2))


def test_known_models_skip_the_check(monkeypatch):
    model, x = MLP((4, 5, 3)), torch.randn(2, 4)
    jn.linearize(model, x)
    monkeypatch.setattr("jacnorm.linearization._examining", None)
    assert jn.linearize(model, x).engine == "layerwise"


@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_measuring_without_gradients(engine, context):
    model, x = LeNet(), torch.randn(2, 1, 28, 28)
    expected = jn.spectral_norm(jn.linearize(model, x)).sigma
    with context():
        J = jn.linearize(model, x * 1, engine=engine)
        assert not J.output.requires_grad
        assert not J.vjp(J.output).requires_grad
        torch.testing.assert_close(jn.spectral_norm(J).sigma, expected)


@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
def test_gradients_reach_an_input_that_wants_them(engine):
    model, x = MLP((4, 5, 3)), torch.randn(2, 4, requires_grad=True)
    jn.linearize(model, x, engine=engine).output.sum().backward()
    ours, x.grad = x.grad, None
    model(x).sum().backward()
    torch.testing.assert_close(ours, x.grad)


def test_input_is_not_written_to():
    x = torch.randn(2, 4)
    before = x.clone()
    jn.linearize(nn.ReLU(inplace=True), x)
    assert torch.equal(x, before)
    assert not x.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_comes_from_the_input(dtype):
    model, x = LeNet().to(dtype), torch.randn(2, 1, 28, 28, dtype=dtype)
    J = jn.linearize(model, x)
    e = jn.spectral_norm(J)
    assert {J.output.dtype, J.dense().dtype, e.sigma.dtype, jn.SpectralPenalty()(J).dtype} == {dtype}


def test_a_constant_model_has_a_zero_jacobian():
    J = jn.linearize(lambda x: torch.ones(2, 3), torch.randn(2, 4))
    assert not J.dense().any()
    assert not J.jvp(torch.ones(2, 4)).any()


def test_layers_are_those_with_weights():
    J = jn.linearize(LeNet(), torch.randn(2, 1, 28, 28))
    shapes = [tuple(layer.input_shape) for layer in J.layers]
    assert shapes == [(1, 28, 28), (6, 14, 14), (400,), (120,), (84,)]
