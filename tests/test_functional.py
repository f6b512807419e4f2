"""Models with further arguments, functional_call, and what of torch.func goes through linearize."""

import pytest
import torch
from oracles import dense, mean_sigma
from torch import nn
from torch.func import functional_call, grad, vmap

import jacnorm as jn
from jacnorm.lab.nets import MLP

BATCH = 4


class Gated(nn.Module):
    """The output depends on x, on a mask and on an optional second input."""

    def __init__(self, activation):
        super().__init__()
        self.first, self.last, self.activation = nn.Linear(6, 8), nn.Linear(8, 3), activation

    def forward(self, x, mask, *, shift=None, scale=1.0):
        hidden = self.activation(self.first(x)) * mask
        hidden = hidden if shift is None else hidden + shift
        return scale * self.last(hidden)


def gated(activation):
    return Gated(activation).double(), torch.randn(BATCH, 6, dtype=torch.float64)


def mask():
    return (torch.rand(BATCH, 8) > 0.3).double()


@pytest.mark.parametrize(("activation", "engine"), [(nn.ReLU(), "layerwise"), (nn.Tanh(), "layerwise")])
def test_further_arguments_go_to_the_model(activation, engine):
    model, x = gated(activation)
    for kept in (mask(), mask()):  # the second time the model is known, and the mask another one
        J = jn.linearize(model, x, kept, shift=torch.ones(8), scale=2.0)
        assert J.engine == engine
        expected = dense(lambda z, kept=kept: model(z, kept, scale=2.0), x)
        torch.testing.assert_close(J.dense(), expected)
        torch.testing.assert_close(J.output, model(x, kept, shift=torch.ones(8), scale=2.0))
    assert J.model is model


@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
@pytest.mark.parametrize("wanted", [False, True])
def test_an_argument_that_depends_on_x_counts_as_a_constant(engine, wanted):
    x = torch.randn(BATCH, 3, requires_grad=wanted)
    weight = torch.randn(3, 3, requires_grad=True)
    for _ in range(2):
        J = jn.linearize(lambda z, other: z @ weight + 3 * other, x, 2 * x, engine=engine)
        torch.testing.assert_close(J.dense(), weight.T.expand(BATCH, 3, 3))
    if wanted:  # but not as far as the loss is concerned
        J.output.sum().backward()
        torch.testing.assert_close(x.grad, weight.sum(1).expand(BATCH, 3) + 6)


def test_known_models_with_arguments_skip_the_check_until_these_are_of_another_kind(monkeypatch):
    model, x = gated(nn.ReLU())
    for _ in range(2):
        jn.linearize(model, x, mask())
    monkeypatch.setattr("jacnorm.recording.check_call", lambda *_: pytest.fail("examined"))
    jn.linearize(model, x, mask())
    with pytest.raises(pytest.fail.Exception, match="examined"):
        jn.linearize(model, x, mask(), shift=torch.ones(8))


def test_an_option_that_nobody_knows_is_named():
    with pytest.raises(jn.ModelError, match=r"argument 'batchnorm'\. Did you mean batch_norm="):
        jn.linearize(MLP((4, 5, 3)), torch.randn(2, 4), batchnorm="flowing")


class Odd(nn.Module):
    """Without a rule."""

    def forward(self, x):
        return torch.special.i0(x)


def functional(activation):
    model, x = gated(activation)
    model = nn.Sequential(model.first, activation, model.last)
    parameters = {name: 0.5 * p.detach() for name, p in model.named_parameters()}

    def f(z, parameters):
        return functional_call(model, parameters, (z,))

    def penalty(parameters):
        return jn.AnalyticPenalty(weight=1.0)(jn.linearize(f, x, parameters))

    def expected():
        """The oracle's value and its gradient in the parameters, by name."""
        wanted = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        value = mean_sigma(dense(lambda z: f(z, wanted), x))
        found = torch.autograd.grad(value, list(wanted.values()), materialize_grads=True)
        return value.detach(), dict(zip(wanted, found, strict=True))

    return penalty, expected, parameters


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()])
def test_gradients_reach_the_parameters_of_a_functional_call(activation):
    penalty, expected, parameters = functional(activation)
    exact, gradients = expected()
    wanted = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    for _ in range(2):
        value = penalty(wanted)
        torch.testing.assert_close(value.detach(), exact)
        found = torch.autograd.grad(value, list(wanted.values()), materialize_grads=True)
        for name, gradient in zip(wanted, found, strict=True):
            torch.testing.assert_close(gradient, gradients[name])


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.LayerNorm(8).double()])
def test_torch_func_differentiates_a_known_model(activation):
    penalty, expected, parameters = functional(activation)
    with pytest.raises(jn.UnsupportedModelError, match="call linearize once outside"):
        grad(penalty)(parameters)
    penalty(parameters)
    torch.testing.assert_close(grad(penalty)(parameters), expected()[1])


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()])
def test_torch_func_differentiates_a_random_penalty(activation):
    """With one output every projection is exact."""
    model, x = (
        nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 1)).double(),
        torch.randn(2, 4).double(),
    )
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    frobenius = jn.FrobeniusPenalty(weight=1.0)

    def f(z, parameters):
        return functional_call(model, parameters, (z,))

    def oracle(parameters):
        rows = torch.func.jacrev(lambda z: f(z, parameters).sum(0))(x)
        return rows.square().sum() / len(x)

    def penalty(parameters):
        return frobenius(jn.linearize(f, x, parameters))

    penalty(parameters)
    drawn = int(frobenius._draws)
    torch.testing.assert_close(grad(penalty)(parameters), grad(oracle)(parameters))
    assert int(frobenius._draws) == drawn + 1


def test_torch_func_goes_through_the_statistics_of_a_batch():
    model = nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.ReLU(), nn.Linear(5, 3)
    )
    x, parameters = torch.randn(6, 4), dict(model.named_parameters())

    def f(z, parameters):
        return functional_call(model, parameters, (z,))

    def penalty(parameters):
        return jn.AnalyticPenalty(weight=1.0)(jn.linearize(f, x, parameters))

    value = penalty(parameters)
    expected = torch.autograd.grad(value, list(parameters.values()), materialize_grads=True)
    found = grad(penalty)({name: p.detach() for name, p in parameters.items()})
    for name, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_torch_func_around_other_models_says_what_to_do():
    penalty, _, parameters = functional(Odd())
    penalty(parameters)
    with pytest.raises(jn.UnsupportedModelError, match=r"differentiate with torch\.autograd\.grad"):
        grad(penalty)(parameters)


def test_vmap_around_linearize_says_what_to_do():
    model, x = MLP((4, 5, 3)), torch.randn(BATCH, 2, 4)
    jn.linearize(model, x[0])
    with pytest.raises(jn.UnsupportedModelError, match="linearize is called under vmap"):
        vmap(lambda z: jn.linearize(model, z).vjp(torch.ones(2, 3)))(x)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh()])
def test_vmap_takes_many_products_at_once(activation):
    model, x = gated(activation)
    J = jn.linearize(model, x, mask())
    one = torch.eye(3, dtype=torch.float64).unsqueeze(1).expand(3, BATCH, 3)
    torch.testing.assert_close(vmap(J.vjp)(one).transpose(0, 1), J.dense())


def pooled():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.filterwarnings("error")  # that there is no batching rule, and a slow loop instead
@pytest.mark.parametrize("size", ["small", "large"])
def test_vmap_through_a_pool(size, request):
    if size == "large":
        request.getfixturevalue("fast_paths")
    J = jn.linearize(pooled(), torch.randn(4, 1, 6, 6))
    one = torch.eye(3).unsqueeze(1).expand(3, 4, 3)
    torch.testing.assert_close(vmap(J.vjp)(one).transpose(0, 1).flatten(2), J.dense())


@pytest.mark.usefixtures("fast_paths")
@pytest.mark.parametrize("given", [dict, lambda named: {name: p.detach() for name, p in named}])
def test_torch_func_goes_through_images_of_any_size(given):
    """With parameters as they are, too, which are plain tensors inside grad()."""
    model, x = pooled().double(), torch.randn(4, 1, 6, 6, dtype=torch.float64)

    def f(z, parameters):
        return functional_call(model, parameters, (z,))

    def penalty(parameters):
        return jn.AnalyticPenalty(weight=1.0)(jn.linearize(f, x, parameters))

    expected = torch.autograd.grad(
        mean_sigma(dense(model, x)), list(model.parameters()), materialize_grads=True
    )
    parameters = given(model.named_parameters())
    penalty(parameters)
    torch.testing.assert_close(tuple(grad(penalty)(parameters).values()), expected)
