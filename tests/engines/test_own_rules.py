"""Rules that users give for functions of their own: `jn.rule`."""

import warnings

import functions
import pytest
import torch
from oracles import dense, mean_sigma
from torch import nn

import jacnorm as jn
from jacnorm.engines import checking


def _swish_rule(x, beta):
    def slope(x, beta):
        s = torch.sigmoid(beta * x)
        return s * (1 + beta * x * (1 - s))

    def push(x, beta, t):
        return slope(x, beta) * t

    return jn.Call(push=push, pull=push, reads=(x, beta))


@jn.rule(_swish_rule)
def swish(x, beta):
    """As it was."""
    return x * torch.sigmoid(beta * x)


def _cube_rule(x):
    return jn.Call(
        push=lambda x, t: 3 * x**2 * t,
        pull=lambda x, c: 3 * x**2 * c,
        reads=(x,),
        terms=lambda x, c, t: [6 * x * c * t],
    )


@jn.rule(_cube_rule)
class Cube(functions.Cube):
    pass


def _product_rule(x, y):
    def push(x, y, tx, ty):
        return (0 if tx is None else tx * y) + (0 if ty is None else x * ty)

    return jn.Call(push=push, pull=lambda x, y, c: [c * y, c * x], reads=(x, y))


@jn.rule(_product_rule, data=2)
def product(x, y):
    return x * y


class Swishes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.beta = nn.Parameter(torch.tensor([0.5, 1.0, 1.5, 2.0, -1.0]))

    def middle(self, x):
        return swish(x, beta=self.beta)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


class Cubes(Swishes):
    def middle(self, x):
        return Cube.apply(x) * self.beta


class Products(Swishes):
    def middle(self, x):
        return product(product(x, x.cos()), self.beta.expand_as(x))


class PlainSwishes(Swishes):
    def middle(self, x):
        return x * torch.sigmoid(self.beta * x)


class PlainCubes(Swishes):
    def middle(self, x):
        return x**3 * self.beta


class PlainProducts(Swishes):
    def middle(self, x):
        return x * x.cos() * self.beta


PAIRS = [(Swishes, PlainSwishes), (Cubes, PlainCubes), (Products, PlainProducts)]


@pytest.fixture(params=PAIRS, ids=lambda pair: pair[0].__name__)
def pair(request):
    ours, plain = (make().double() for make in request.param)
    plain.load_state_dict(ours.state_dict())
    return ours, plain


def test_products_are_those_of_the_function(pair):
    ours, plain = pair
    x = torch.randn(6, 4, dtype=torch.float64)
    for _ in range(3):  # verified, and not
        J = jn.linearize(ours, x)
        assert (J.engine, J.reason) == ("layerwise", None)
        assert torch.allclose(J.dense(), dense(plain, x))
        assert torch.allclose(J.output, plain(x))


def test_gradients_are_those_of_the_function(pair):
    ours, plain = pair
    x = torch.randn(6, 4, dtype=torch.float64)
    penalty = jn.SpectralPenalty(weight=1.0, iterations=500)
    for _ in range(3):
        J = jn.linearize(ours, x)
        found = torch.autograd.grad(J.output.sum() + penalty(J), ours.parameters())
        norm = mean_sigma(dense(plain, x))
        expected = torch.autograd.grad(plain(x).sum() + norm, plain.parameters())
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, atol=1e-7)


def test_training_goes_as_with_the_plain_function(pair):
    ours, plain = pair
    x = torch.randn(6, 4, dtype=torch.float64)
    engines = []
    for model in pair:
        penalty = jn.SpectralPenalty(weight=0.1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(6):
            J = jn.linearize(model, x)
            engines.append(J.engine)
            optimizer.zero_grad()
            (J.output.square().mean() + penalty(J)).backward()
            optimizer.step()
    assert set(engines) == {"layerwise"}
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-8)


def test_without_a_record_the_function_is_as_it_was():
    x, beta = torch.randn(3, 2, requires_grad=True), torch.tensor(2.0)
    expected = x * torch.sigmoid(beta * x)
    assert (swish.__name__, swish.__doc__) == ("swish", "As it was.")
    assert torch.equal(swish(x, beta), expected)
    assert torch.equal(swish(beta=beta, x=x), expected)
    with torch.no_grad():
        assert not swish(x, beta).requires_grad
    (gradient,) = torch.autograd.grad(Cube.apply(x).sum(), x)
    assert torch.allclose(gradient, 3 * x**2)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        swish(x)


def test_it_can_be_compiled():
    x, beta = torch.randn(3, 2, requires_grad=True), torch.tensor(2.0)
    compiled = torch.compile(lambda x: swish(x, beta) + Cube.apply(x), backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), swish(x, beta) + x**3)
    (found,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad((swish(x, beta) + x**3).sum(), x)
    assert torch.allclose(found, expected)


def _sine_rule(**parts):
    def call(x):
        right = {"push": lambda x, t: x.cos() * t, "pull": lambda x, c: x.cos() * c, "reads": (x,)}
        return jn.Call(**{**right, **parts})

    return call


def _sine_without_reads(x):
    slope = x.detach().cos()
    return jn.Call(push=lambda t: slope * t, pull=lambda c: slope * c)


WRONG = {
    "pull": (_sine_rule(pull=lambda x, c: 2 * x.cos() * c), "products differ"),
    "push": (_sine_rule(push=lambda x, t: t), "not transposes"),
    "shape": (_sine_rule(pull=lambda x, c: c[:, :1]), "wrong shape"),
    "terms": (_sine_rule(terms=lambda x, c, t: [x.sin() * c * t]), "terms are not the gradient"),
    "reads": (_sine_without_reads, "gradient of its products"),
    "y": (_sine_rule(y=torch.zeros(1, 1)), "another result"),
    "raises": (_sine_rule(nonsense=1), "its rule failed with TypeError"),
    "no call": (lambda x: None, "returned NoneType, not a Call"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found_out(name):
    call, why = WRONG[name]
    sine = jn.rule(call)(torch.sin)
    layer = nn.Linear(4, 3)
    x = torch.randn(5, 4)
    for _ in range(3):
        J = jn.linearize(lambda x: sine(layer(x)), x)
        assert "sin" in J.reason
        assert why in J.reason
        assert "report" not in J.reason
        assert torch.allclose(J.dense(), layer(x).cos()[:, :, None] * layer.weight, atol=1e-6)


def test_a_right_rule_without_terms_is_differentiated():
    sine = jn.rule(_sine_rule())(torch.sin)
    assert jn.linearize(lambda x: sine(2 * x), torch.randn(5, 4)).reason is None


def test_an_argument_that_depends_on_the_input_too_goes_by_autograd():
    x = torch.randn(5, 4).double()
    J = jn.linearize(lambda x: swish(x, x[:, :1]), x)
    assert "a parameter of it depends on the input" in J.reason
    assert torch.allclose(J.dense(), dense(lambda x: x * torch.sigmoid(x[:, :1] * x), x))


def test_several_results_go_by_autograd():
    both = jn.rule(lambda x: jn.Call(push=lambda t: t, pull=lambda c: c))(lambda x: (x.sin(), x.cos()))
    x = torch.randn(5, 4)
    J = jn.linearize(lambda x: both(x)[0] + both(x)[1], x)
    assert "rules are for one tensor" in J.reason
    assert torch.allclose(J.dense(), torch.diag_embed(x.cos() - x.sin()), atol=1e-6)


def test_two_functions_of_one_name_have_two_rules():
    def make(factor):
        @jn.rule(lambda x: jn.Call(push=lambda t: factor * t, pull=lambda c: factor * c))
        def linear(x):  # PyTorch has one, too
            return factor * x

        return linear

    x = torch.randn(2, 3)
    for factor in (2.0, 3.0):
        J = jn.linearize(make(factor), x)
        assert J.reason is None
        assert torch.equal(J.dense(), factor * torch.eye(3).expand(2, 3, 3))


def test_a_subclass_of_a_function_has_no_rule():
    class Fifth(Cube):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**5

        @staticmethod
        def backward(ctx, c):
            (x,) = ctx.saved_tensors
            return 5 * x**4 * c

    x = torch.randn(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        J = jn.linearize(Fifth.apply, x)
    assert torch.allclose(J.dense(), torch.diag_embed(5 * x**4), atol=1e-5)


@pytest.mark.parametrize("thing", [nn.ReLU(), nn.ReLU, 3])
def test_what_is_no_function_is_refused(thing):
    with pytest.raises(jn.InputError, match="a function of tensors"):
        jn.rule(_cube_rule)(thing)


def test_options_are_checked():
    with pytest.raises(jn.InputError, match="data=0"):
        jn.rule(_cube_rule, data=0)
    with pytest.raises(jn.InputError, match="returns a Call"):
        jn.rule("cube")


def test_half_precision_and_autocast():
    model, x = Swishes(), torch.randn(6, 4)
    with torch.autocast(x.device.type, torch.bfloat16):
        J = jn.linearize(model, x)
    assert J.reason is None
    assert torch.allclose(J.dense(), jn.linearize(model, x).dense(), atol=0.05)


def test_a_rule_that_is_wrong_for_the_last_row_of_many_is_found():
    """Large tensors are compared piece by piece."""

    def wrong_at_the_end(x):
        def push(x, t):
            return 3 * x**2 * torch.cat([t[:-1], 2 * t[-1:]])

        return jn.Call(push, push, reads=(x,))

    @jn.rule(wrong_at_the_end)
    def cube(x):
        return x**3

    x = torch.randn(checking.PIECE // 1000 + 40, 1000)
    J = jn.linearize(lambda x: cube(x).sum(1, keepdim=True), x)
    assert "its products differ from autograd's" in J.reason
    torch.testing.assert_close(J.vjp(torch.ones(len(x), 1)), 3 * x**2)
