"""What was found in use, and must not come back."""

import functools
import gc
import os
import signal
import warnings

import pytest
import torch
import torch.nn.functional as F
from functions import Cube
from oracles import dense, mean_sigma
from torch import nn

import jacnorm as jn


def _randn(*shape):
    return torch.randn(*shape)


# Layers of the wrong size. ------------------------------------------------------------------------

IMAGES, ROWS = (2, 4, 8, 8), (2, 8)
MIS_SIZED = {
    "batch norm": (lambda: nn.Sequential(nn.Conv2d(4, 64, 3), nn.BatchNorm2d(16)), IMAGES),
    "batch norm of rows": (lambda: nn.BatchNorm1d(3), ROWS),
    "batch norm without statistics": (lambda: nn.BatchNorm2d(16, track_running_stats=False), IMAGES),
    "batch norm without weights": (lambda: nn.BatchNorm2d(16, affine=False), IMAGES),
    "batch norm's bias": (
        lambda: lambda x: F.batch_norm(x, None, None, torch.ones(4), torch.ones(9), True),
        IMAGES,
    ),
    "batch norm's weight": (
        lambda: lambda x: F.batch_norm(x, None, None, torch.ones(4, 1), None, True),
        IMAGES,
    ),
    "layer norm": (lambda: nn.LayerNorm(5), ROWS),
    "layer norm's weight": (lambda: lambda x: F.layer_norm(x, (8,), torch.ones(4)), ROWS),
    "layer norm's bias": (lambda: lambda x: F.layer_norm(x, (8,), torch.ones(8), torch.ones(1)), ROWS),
    "group norm": (lambda: nn.GroupNorm(2, 6), IMAGES),
    "group norm of no groups": (lambda: lambda x: F.group_norm(x, 0), IMAGES),
    "group norm's weight": (lambda: lambda x: F.group_norm(x, 2, torch.ones(2)), IMAGES),
    "instance norm": (lambda: nn.InstanceNorm2d(7, affine=True, track_running_stats=True), IMAGES),
    "RMS norm": (lambda: nn.RMSNorm(5), ROWS),
    "RMS norm's weight": (lambda: lambda x: F.rms_norm(x, (8,), torch.ones(3)), ROWS),
    "convolution": (lambda: nn.Conv2d(3, 5, 3), IMAGES),
    "convolution of grey images": (lambda: nn.Conv2d(4, 5, 3), (4, 1, 64, 64)),
    "convolution's bias": (lambda: lambda x: F.conv2d(x, _randn(6, 4, 3, 3), _randn(5)), IMAGES),
    "convolution's groups": (lambda: lambda x: F.conv2d(x, _randn(6, 2, 3, 3), groups=3), IMAGES),
    "convolution's kernel": (lambda: nn.Conv2d(4, 5, 30), IMAGES),
    "convolution's stride": (lambda: lambda x: F.conv2d(x, _randn(6, 4, 3, 3), stride=0), IMAGES),
    "convolution's dilation": (lambda: lambda x: F.conv2d(x, _randn(6, 4, 3, 3), dilation=0), IMAGES),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 5, 3), IMAGES),
    "transposed convolution's bias": (
        lambda: lambda x: F.conv_transpose2d(x, _randn(4, 3, 3, 3), _randn(9)),
        IMAGES,
    ),
    "linear": (lambda: nn.Linear(5, 3), ROWS),
    "linear's bias": (lambda: lambda x: F.linear(x, _randn(3, 8), _randn(4)), ROWS),
    "bilinear": (lambda: lambda x: F.bilinear(x, x, _randn(3, 8, 7)), ROWS),
    "max pool": (lambda: nn.MaxPool2d(20), IMAGES),
    "max pool of nothing": (lambda: lambda x: F.max_pool2d(x, 0), IMAGES),
    "max pool's padding": (lambda: lambda x: F.max_pool2d(x, 2, padding=2), IMAGES),
    "max pool of rows": (lambda: nn.MaxPool2d(2), ROWS),
    "average pool": (lambda: nn.AvgPool2d(20), IMAGES),
    "average pool's padding": (lambda: nn.AvgPool2d(2, padding=2), IMAGES),
    "average pool's divisor": (lambda: lambda x: F.avg_pool2d(x, 2, divisor_override=0), IMAGES),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d(-3), IMAGES),
    "unpooling": (lambda: lambda x: F.max_unpool2d(x, torch.full(IMAGES, 999), 2), IMAGES),
    "fold": (lambda: nn.Fold((4, 4), 2), (2, 4, 8)),
    "pixel shuffle": (lambda: nn.PixelShuffle(3), IMAGES),
    "grid": (lambda: lambda x: F.grid_sample(x, _randn(3, 4, 4, 2), align_corners=False), IMAGES),
    "reflection": (lambda: lambda x: F.pad(x, (9, 9), mode="reflect"), IMAGES),
    "PReLU": (lambda: nn.PReLU(3), IMAGES),
    "GLU": (lambda: nn.GLU(), (2, 5)),
    "softmax": (lambda: nn.Softmax(7), ROWS),
    "attention": (lambda: lambda x: F.scaled_dot_product_attention(x, _randn(2, 4, 5, 7), x), IMAGES),
    "attention's mask": (
        lambda: lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=_randn(3, 3)),
        IMAGES,
    ),
    "heads": (lambda: nn.TransformerEncoderLayer(6, 2, batch_first=True), (2, 4, 8)),
    "LSTM": (lambda: nn.Sequential(nn.LSTM(5, 3)), (2, 4, 8)),
    "gather": (lambda: lambda x: x.gather(1, torch.tensor([[99], [0]])), ROWS),
    "index": (lambda: lambda x: x[:, [99]], ROWS),
    "index_select": (lambda: lambda x: x.index_select(1, torch.tensor([99])), ROWS),
    "index_put": (lambda: lambda x: x.index_put((torch.tensor([0]), torch.tensor([99])), _randn(1)), ROWS),
    "scatter": (lambda: lambda x: torch.zeros(2, 3).scatter_add(1, torch.full((2, 8), 99), x), ROWS),
    "index_add": (lambda: lambda x: torch.zeros(2, 3).index_add(1, torch.full((8,), 99), x), ROWS),
    "matrix": (lambda: lambda x: x @ _randn(7, 3), ROWS),
    "dropout": (lambda: lambda x: F.dropout(x, 1.5, True), ROWS),
}


def _in_a_process_of_its_own(check):
    """A crash would take all other tests along."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            check()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode())
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status == 0


@pytest.mark.parametrize("name", MIS_SIZED)
def test_a_layer_of_the_wrong_size_gives_its_own_error(name):
    make, shape = MIS_SIZED[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)

    def check():
        for engine in ("auto", "auto", "autograd"):
            with pytest.raises(jn.ModelError, match="The model failed on x"):
                jn.linearize(model, x, engine=engine)

    _in_a_process_of_its_own(check)


def test_the_error_of_a_batch_norm_is_pytorch_s():
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(16))
    with pytest.raises(jn.ModelError, match="running_mean should contain 64 elements not 16"):
        jn.linearize(model, torch.randn(2, 3, 8, 8))


# Hooks. -------------------------------------------------------------------------------------------


class Hooked(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.fired = kind, 0
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        if kind == "module":
            self.last.register_full_backward_hook(lambda m, into, out: self._changed(into))
        if kind == "module before":
            self.first.register_full_backward_pre_hook(lambda m, out: self._changed(out))

    def _changed(self, gradients):
        self.fired += 1
        return tuple(3 * g for g in gradients)

    def forward(self, x):
        y = torch.relu(self.first(x))
        if y.requires_grad and self.kind == "removes itself":

            def hook(gradient):
                handle.remove()
                return self._changed([gradient])[0]

            handle = y.register_hook(hook)
        if y.requires_grad and self.kind == "stays":
            y.register_hook(lambda gradient: self._changed([gradient])[0])
        return self.last(y)


def test_a_hook_on_the_whole_model_does_not_have_it_verified_in_every_step():
    """Its input passes through the hook where it wants a gradient, as it does while a model is verified."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    model.register_full_backward_hook(lambda *_: None)
    verified = [jn.linearize(model, torch.randn(6, 4)).verified for _ in range(8)]
    assert verified == [True, True, False, True, False, False, False, True]


KINDS = ["removes itself", "stays", "module", "module before"]


@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:The model registers a hook", "ignore:Full backward hook is firing")
def test_hooks_fire_for_the_loss_alone(kind, engine):
    model, x = Hooked(kind), torch.randn(6, 4)
    plain = nn.Sequential(model.first, nn.ReLU(), model.last)
    expected_J = dense(plain, x) if "module" not in kind else None
    for _ in range(5):  # verified at the first, second and fourth visit
        J = jn.linearize(model, x, engine=engine)
        assert J.engine == ("layerwise" if engine == "auto" else "autograd")
        found_J = J.dense()
        jn.spectral_norm(J)
        penalty = jn.SpectralPenalty(1.0)(J)
        assert model.fired == 0
        if expected_J is not None:
            assert torch.allclose(found_J, expected_J, atol=1e-6)
        found = torch.autograd.grad(J.output.square().sum(), model.parameters(), retain_graph=True)
        assert model.fired == 1
        torch.autograd.grad(penalty, [model.first.weight, model.last.weight])
        model.fired = 0
        expected = torch.autograd.grad(model(x).square().sum(), model.parameters())
        assert model.fired == 1
        model.fired = 0
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_hook_on_a_tensor_is_told_once(engine):
    model, x = Hooked("stays"), torch.randn(6, 4)
    with pytest.warns(UserWarning, match="registers a hook"):
        jn.linearize(model, x, engine=engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            jn.linearize(model, x, engine=engine)


def test_a_model_may_ask_for_the_graph_and_keep_gradients():
    kept = []

    def model(x):
        y = (2 * x).relu()
        if y.requires_grad:
            assert "Relu" in y.grad_fn.name()
            y.retain_grad()
            kept.append(y)
        return 3 * y

    x = torch.randn(5, 4, requires_grad=True)
    J = jn.linearize(model, x)
    assert (J.engine, J.reason) == ("layerwise", None)
    J.dense()
    J.output.sum().backward()
    assert torch.equal(kept[-1].grad, torch.full((5, 4), 3.0))


# Numbers at the edge. -----------------------------------------------------------------------------


class _NotANumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, c):
        return c * float("nan")


NAN = {
    "square root at zero": (lambda x: torch.sqrt(torch.relu(x)), [[0.0, 1.0, -1.0]]),
    "a function of one's own": (_NotANumber.apply, [[1.0, 2.0, 3.0]]),
    "0 · inf": (lambda x: torch.where(x > 0, x, x.abs().pow(0.5) * 0), [[0.0, 1.0, 2.0]]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("iterations", [1, 2, 3])
@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize("name", NAN)
def test_what_is_not_a_number_is_never_a_penalty_of_zero(name, engine, iterations):
    model, values = NAN[name]
    x = torch.tensor(values)
    for penalty in (
        jn.SpectralPenalty(1.0, iterations=iterations),
        jn.SpectralPenalty(1.0, iterations=iterations, start="random"),
        jn.SpectralPenalty(1.0, iterations=iterations, h="hinge"),
    ):
        try:
            value = penalty(jn.linearize(model, x, engine=engine))
        except jn.NonFiniteError:
            continue
        assert value.isnan()


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_a_sum_of_exponentials_of_minus_infinity_has_a_penalty(engine):
    def model(x):
        return torch.logcumsumexp(torch.cat([torch.full_like(x[:, :1], -torch.inf), x], 1), 1)[:, 1:]

    x = torch.randn(3, 4).double()
    exact = mean_sigma(dense(lambda x: x.logcumsumexp(1), x))
    value = jn.SpectralPenalty(1.0, iterations=200)(jn.linearize(model, x, engine=engine))
    if engine == "auto":
        assert torch.allclose(value, exact)
    else:  # PyTorch's own second derivative is NaN, and never another number
        assert value.isnan() or torch.allclose(value, exact)


def test_measuring_what_is_not_a_number_is_an_error():
    class Broken:
        input_shape = output_shape = torch.Size((1, 50))
        dtype, device = torch.float32, torch.device("cpu")

        def jvp(self, v):
            return v * float("nan")

        def vjp(self, u):
            return u

    with pytest.raises(jn.NonFiniteError, match="NaN or inf"):
        jn.spectral_norm(Broken())


@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("scale", [1e2, 1e3, 1e4, 1e5])
def test_a_very_confident_network_is_served(scale, batch, engine):
    layer, x = nn.Linear(4, 3), torch.randn(batch, 4)
    for squash in (lambda y: torch.softmax(y, 1), torch.sigmoid, torch.tanh, F.gelu):
        J = jn.linearize(lambda x, squash=squash: squash(scale * layer(x)), x, engine=engine)
        assert not J.is_one_way
        assert jn.SpectralPenalty(1.0)(J).isfinite()


CALLS_ON_A_NUMBER = {
    **{
        name: getattr(torch, name) for name in ("sum", "mean", "amax", "amin", "max", "min", "median", "prod")
    },
    **{name: getattr(torch, name) for name in ("norm", "relu", "exp", "nansum", "nanmean", "flatten")},
    "norm over no axis": torch.linalg.vector_norm,
    "var": lambda t: torch.var(t, correction=0),
    "std": lambda t: torch.std(t, correction=0) * 0 + t,
    **{
        f"{name} over axis {axis}": functools.partial(getattr(torch, name), dim=axis)
        for name in ("sum", "mean", "amax", "logsumexp", "softmax", "log_softmax", "cumsum", "logcumsumexp")
        for axis in (0, -1)
    },
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", CALLS_ON_A_NUMBER)
def test_calls_on_tensors_without_axes(name):
    call = CALLS_ON_A_NUMBER[name]

    def model(x):
        return torch.stack([call(row[0] * row[1]).reshape(1) + row for row in x.unbind()])

    x = torch.rand(3, 2).double() + 0.5
    expected = dense(model, x)
    try:
        found = jn.linearize(model, x).dense()
    except jn.NonFiniteError:
        assert not expected.isfinite().all()
    else:
        assert torch.allclose(found, expected, equal_nan=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("call", [torch.var, torch.std])
def test_the_variance_of_one_number_is_not_a_number(call):
    with pytest.raises(jn.NonFiniteError, match="NaN or inf"):
        jn.linearize(lambda x: torch.stack([call(row[0]).reshape(1) + row for row in x]), torch.rand(3, 2))


# Models with Jᵀu alone. ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [((4,), 3), ((3,), 4), ((40,), 50), ((5, 10), 40)])
def test_a_model_without_second_derivatives_is_measured(shape):
    inner, n_out = shape
    layer = nn.Linear(inner[-1], n_out).double()
    x = torch.randn(2, *inner).double()
    J = jn.linearize(lambda x: Cube.apply(layer(x)), x)
    assert J.is_one_way
    with torch.no_grad():
        dense = J.dense()
    exact = torch.linalg.svdvals(dense)
    e = jn.spectral_norm(J, tol=1e-10)
    assert torch.allclose(e.sigma, exact[:, 0])
    assert (e.u.shape, e.v.shape) == (J.output_shape, J.input_shape)
    assert e.converged.all()
    assert torch.allclose(jn.singular_values(J, 2), exact[:, :2])
    U, S, V = jn.singular_vectors(J, 2)
    assert torch.allclose(S, exact[:, :2])
    assert (U[:, 0].shape, V[:, 0].shape) == (J.output_shape, J.input_shape)
    assert torch.allclose(jn.frobenius_norm(J), torch.linalg.matrix_norm(dense))
    assert torch.allclose(jn.induced_norm(J, 1).lower, dense.norm(dim=1).amax(1))
    assert (jn.induced_norm(J, "inf").lower >= e.sigma).all()
    with pytest.raises(jn.UnsupportedModelError, match="Cube"):
        jn.SpectralPenalty()(J)


# Functions that are made anew. --------------------------------------------------------------------


def _net():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def _lambda(net, t):
    return lambda x: net(x) * t


def _default(net, t):
    return lambda x, net=net: net(x) * t


def _nested(net, t):
    inner = _lambda(net, t)
    return lambda x: inner(x)


def _partial(net, t):
    return functools.partial(lambda net, t, x: net(x) * t, net, t)


@pytest.mark.parametrize("make", [_lambda, _default, _nested, _partial])
def test_a_function_made_in_every_step_is_known(make):
    nets, x = [_net(), _net()], torch.randn(6, 4)
    for net in nets:  # the second one is not taken for the first
        verified = [jn.linearize(make(net, torch.randn(1)), x).verified for _ in range(8)]
        assert verified == [True, True, False, True, False, False, False, True]


def test_switches_that_a_function_holds_count():
    net, x = _net(), torch.randn(6, 4)

    def step(smooth):
        return jn.linearize(lambda x: torch.tanh(net(x)) if smooth else net(x), x).verified

    assert [step(False) for _ in range(3)] == [True, True, False]
    assert [step(True) for _ in range(3)] == [True, True, False]


def test_modes_of_what_a_function_holds_count():
    net, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.randn(6, 4)
    assert [jn.linearize(lambda x: net(x), x).verified for _ in range(3)] == [True, True, False]
    net.eval()
    assert jn.linearize(lambda x: net(x), x).verified


def test_methods_of_two_objects_are_two():
    class Trainer:
        def __init__(self):
            self.net = _net()

        def step(self, x):
            return jn.linearize(lambda x: self.net(x), x).verified

    x = torch.randn(6, 4)
    for trainer in (Trainer(), Trainer()):
        assert [trainer.step(x) for _ in range(3)] == [True, True, False]


def test_a_known_function_does_not_keep_its_modules():
    from jacnorm.trust.verdicts import known_to_code

    gc.collect()
    before = len(known_to_code)
    net = _net()
    jn.linearize(_lambda(net, 2.0), torch.randn(6, 4))
    assert len(known_to_code) == before + 1
    del net
    gc.collect()
    assert len(known_to_code) == before


def test_a_function_that_holds_itself():
    def model(x, depth=0):
        return 2 * x if depth else model(x, 1)

    assert jn.linearize(model, torch.randn(2, 3)).engine == "layerwise"


# Complex numbers. ---------------------------------------------------------------------------------


def test_the_advice_for_complex_inputs_keeps_the_imaginary_part():
    model, x = nn.Linear(4, 3, dtype=torch.complex64), torch.randn(2, 4, dtype=torch.complex64)
    with pytest.raises(jn.InputError, match=r"torch\.view_as_real"):
        jn.linearize(model, x)
    real = torch.view_as_real(x)
    with pytest.raises(jn.InputError, match=r"end the model in torch\.view_as_real"):
        jn.linearize(lambda x: model(torch.view_as_complex(x)), real)
    J = jn.linearize(lambda x: torch.view_as_real(model(torch.view_as_complex(x))), real)
    assert torch.allclose(
        jn.spectral_norm(J).sigma, torch.linalg.matrix_norm(model.weight, 2).expand(2), atol=1e-5
    )


# Models that hand on their input, and models that differentiate. ---------------------------------


@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
@pytest.mark.parametrize("model", [nn.Identity(), nn.Dropout().eval(), nn.Flatten()], ids=str)
def test_a_model_that_gives_its_input_back_has_a_jacobian_of_ones(model, engine):
    x = torch.randn(2, 3)
    J = jn.linearize(model, x, engine=engine)
    torch.testing.assert_close(J.dense(), torch.eye(3).expand(2, 3, 3))
    torch.testing.assert_close(J.jvp(x), x)
    torch.testing.assert_close(jn.spectral_norm(J).sigma, torch.ones(2))


class Score(nn.Module):
    """The gradient of an energy, as such models write it."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def forward(self, x):
        with torch.enable_grad():
            x = x if x.requires_grad else x.requires_grad_()
            (score,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return score


def test_a_model_that_differentiates_is_one_step():
    model, x = Score(), torch.randn(2, 3, dtype=torch.float64)
    weights = list(model.parameters())

    def hessian(i, create_graph=False):
        return torch.autograd.functional.hessian(
            lambda z: model.energy(z[None]).sum(), x[i], create_graph=create_graph
        )

    for _ in range(2):
        J = jn.linearize(model, x)
        assert "grad is called inside the model" in J.reason
        for i in range(len(x)):
            torch.testing.assert_close(J.dense()[i].detach(), hessian(i))
        value = jn.AnalyticPenalty(weight=1.0)(J)
        exact = sum(torch.linalg.matrix_norm(hessian(i, create_graph=True), 2) for i in range(2)) / 2
        torch.testing.assert_close(value, exact)
        ours, theirs = (torch.autograd.grad(v, weights, materialize_grads=True) for v in (value, exact))
        torch.testing.assert_close(ours, theirs)
