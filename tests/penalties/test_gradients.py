"""The gradient of every penalty against the gradient of the dense quantity: values alone prove little.

That rules hand on the gradient of uᵀJ v is tested in tests/engines, on every case.
"""

import pytest
import torch
import torch.nn.functional as F
from agreement import Behind
from cases import NETS, SMALL
from functions import Rounded
from oracles import arrived, assert_near, dense, gradient, mean_sigma, mean_square, top_left
from torch import nn
from torch.utils.checkpoint import checkpoint

import jacnorm as jn


def exact_spectral(J, D):
    """A SpectralPenalty that already knows the top singular vectors of these samples."""
    penalty = jn.SpectralPenalty(weight=1.0)
    penalty.u = top_left(D)
    return penalty(J, index=torch.arange(len(D)))


def analytic(J, D):
    return jn.AnalyticPenalty(weight=1.0)(J)


def exact_frobenius(J, D):
    """With the unit vectors as projections the estimate is exact."""
    n_out = D.shape[1]
    units = iter(torch.eye(n_out, dtype=D.dtype).repeat_interleave(len(D), 0).split(len(D)))
    penalty = jn.FrobeniusPenalty(weight=1.0, projections=n_out)
    penalty.random = lambda shape, like: next(units).view(shape)
    return penalty(J)


PENALTIES = {
    "spectral": (exact_spectral, mean_sigma),
    "analytic": (analytic, mean_sigma),
    "frobenius": (exact_frobenius, mean_square),
}


@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize("case", NETS, ids=str)
def test_value_and_gradient(case, engine):
    for batch_norm in case.conventions:
        model, x = case.make()
        model = Behind(model, x)
        D = dense(model, x, flowing=batch_norm == "flowing")
        for penalty, quantity in PENALTIES.values():
            J = jn.linearize(model, x, engine=engine, batch_norm=batch_norm)
            value, expected = penalty(J, D), quantity(D)
            torch.testing.assert_close(value, expected)
            model.zero_grad()
            value.backward()
            assert_near(arrived(model), gradient(expected, model), 1e-6)


@pytest.mark.parametrize("h", ["identity", "square", "hinge"])
def test_shapes_of_h(h):
    model, x = SMALL.make()
    sigma = torch.linalg.matrix_norm(dense(model, x), 2)
    threshold = float(sigma.detach().sort().values[:2].mean())  # one sample is below, where h has no slope
    shapes = {"identity": lambda s: s, "square": torch.square, "hinge": lambda s: torch.relu(s - threshold)}
    penalty = jn.SpectralPenalty(weight=2.0, iterations=300, h=h, threshold=threshold)
    value = penalty(jn.linearize(model, x))
    value.backward()
    expected = 2 * shapes[h](sigma).mean()
    torch.testing.assert_close(value, expected)
    assert_near(arrived(model), gradient(expected, model), 1e-6)
    assert value > 0


def test_weight_decay_is_the_optimizers():
    model, x = SMALL.make()
    jn.WeightDecay(weight=0.3)(jn.linearize(model, x)).backward()
    for parameter in model.parameters():
        torch.testing.assert_close(parameter.grad, 0.3 * parameter.detach())


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.fc = nn.Linear(27, 4)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).flatten(1))


def test_spectral_bound_takes_the_convolution_as_an_operator():
    torch.manual_seed(0)
    model, x = ConvNet().double(), torch.randn(2, 2, 6, 6, dtype=torch.float64)
    penalty = jn.SpectralBoundPenalty(weight=0.5)
    for _ in range(500):  # each backward is a power step
        model.zero_grad()
        value = penalty(jn.linearize(model, x))
        value.backward()

    matrices = [dense(model.conv, x)[0], model.fc.weight]
    expected = 0.5 * sum(torch.linalg.matrix_norm(W, 2) ** 2 for W in matrices)
    torch.testing.assert_close(value, expected)
    assert_near(arrived(model), gradient(expected, model), 1e-6)


def test_spectral_bound_of_the_reshaped_kernel():
    torch.manual_seed(0)
    model, x = ConvNet().double(), torch.randn(2, 2, 6, 6, dtype=torch.float64)
    penalty = jn.SpectralBoundPenalty(weight=1.0, iterations=500, convolution="kernel")
    expected = sum(
        torch.linalg.matrix_norm(W.flatten(1), 2) ** 2 for W in (model.conv.weight, model.fc.weight)
    )
    torch.testing.assert_close(penalty(jn.linearize(model, x)), expected)


def squared_norms(*layers):
    return sum(torch.linalg.matrix_norm(layer.weight.detach(), 2).square() for layer in layers)


def test_spectral_bound_goes_on_over_texts_of_all_lengths():
    """A linear layer has one norm on any number of tokens, and its power iteration one vector."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    penalty = jn.SpectralBoundPenalty(weight=1.0)
    for step in range(300):
        value = penalty(jn.linearize(model, torch.randn(2, 5 + step % 7, 8)))
    torch.testing.assert_close(value.detach(), squared_norms(model[0], model[2]))


def test_spectral_bound_goes_on_over_images_of_all_sizes():
    """The norm of a convolution hardly depends on the size, so what was found on one serves the next."""
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding=1)
    penalty = jn.SpectralBoundPenalty(weight=1.0)
    sizes = (16, 12, 16, 20)
    values = [penalty(jn.linearize(model, torch.randn(1, 2, n, n))).item() for n in sizes * 100]
    exact = [
        jn.spectral_norm(jn.linearize(model, torch.randn(1, 2, n, n)), tol=1e-5).sigma.item() ** 2
        for n in sizes
    ]
    assert min(v / e for v, e in zip(values[-4:], exact, strict=True)) > 0.95
    assert values[0] < 0.5 * exact[0]


class Hiding(nn.Module):
    def __init__(self, hide):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.hide = hide

    def forward(self, x):
        return self.third(self.hide(self.second, self.hide(self.first, x)))


@pytest.mark.parametrize(
    ("hide", "engine"),
    [
        (lambda layer, x: Rounded.apply(layer(x)), "autograd"),
        (lambda layer, x: checkpoint(lambda z: layer(z).relu(), x, use_reentrant=False), "layerwise"),
    ],
    ids=["autograd function", "checkpointing"],
)
def test_spectral_bound_counts_layers_that_have_no_step(hide, engine):
    torch.manual_seed(0)
    model, x = Hiding(hide).double(), torch.randn(4, 6, dtype=torch.float64)
    penalty = jn.SpectralBoundPenalty(weight=1.0, iterations=500)
    for _ in range(3):  # the verdict on the model is remembered
        J = jn.linearize(model, x)
        assert J.engine == engine
        torch.testing.assert_close(penalty(J).detach(), squared_norms(model.first, model.second, model.third))


@pytest.mark.parametrize("case", NETS, ids=str)
def test_product_bound_is_a_bound(case):
    model, x = case.make()
    J = jn.linearize(model, x)
    bound, sigma = jn.product_bound(J, tol=1e-6), jn.spectral_norm(J).sigma
    assert (bound >= sigma * (1 - 1e-6)).all()


class SequenceFirst(nn.Module):
    """The batch is the second axis inside, and each step of the sequence has a gain of its own."""

    def __init__(self, steps):
        super().__init__()
        self.register_buffer("gain", torch.linspace(1, 10, steps))

    def forward(self, x):
        return (x.transpose(0, 1) * self.gain[:, None, None]).relu().transpose(0, 1).sum(1)


class TimeDistributed(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x.flatten(0, 1)).relu().view(x.shape).sum(1)


@pytest.mark.parametrize("net", [SequenceFirst, TimeDistributed])
@pytest.mark.parametrize(("batch", "steps"), [(2, 2), (3, 2), (1, 3)])
def test_product_bound_where_the_first_axis_is_not_the_batch(net, batch, steps):
    model, x = net(steps).double(), torch.randn(batch, steps, 3, dtype=torch.float64)
    J = jn.linearize(model, x)
    assert J.engine == "layerwise"
    bound, sigma = jn.product_bound(J), jn.spectral_norm(J).sigma
    assert bound.shape == sigma.shape
    assert (bound >= sigma).all()
    assert (bound <= 10 * steps).all()  # largest gain or ‖W‖ < 10, times √steps for the sum


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_product_bound_is_each_samples_own(dtype):
    gain = torch.tensor([[1.0], [3.0], [10.0]], dtype=dtype)
    J = jn.linearize(lambda z: (z * gain).relu(), torch.rand(3, 4).to(dtype) + 1)
    assert J.engine == "layerwise"
    torch.testing.assert_close(jn.product_bound(J), gain[:, 0].float())


def test_product_bound_is_the_product_of_the_weights_norms_on_a_chain():
    model, x = SMALL.make()
    weights = [m.weight for m in model if isinstance(m, nn.Linear)]
    expected = torch.stack([torch.linalg.matrix_norm(W, 2) for W in weights]).prod().detach()
    bound = jn.product_bound(jn.linearize(model, x), tol=1e-9)
    torch.testing.assert_close(bound, expected.expand(len(x)))


def test_a_loss_that_lives_on_holds_no_jacobian():
    """As in a training loop, where it lives until the next one takes its place."""
    import gc
    import weakref

    net, x = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(2, 5)
    J = jn.linearize(net, x)
    loss = J.output.sum() + jn.FrobeniusPenalty(0.1)(J)
    watched = weakref.ref(J)
    loss.backward()
    del J
    gc.collect()
    assert watched() is None
