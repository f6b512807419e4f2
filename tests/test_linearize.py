"""What linearize promises beyond right products: errors, fall-back, no side effects."""

import copy
import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.testing import assert_close

import jacnorm as jn
from jacnorm.engines.checking import check_call
from jacnorm.engines.rules import RULES, Call, Rule
from jacnorm.lab.nets import MLP, LeNet


@pytest.mark.parametrize(
    ("model", "x", "error", "message"),
    [
        (MLP((4, 5, 3)), "images", jn.InputError, "must be a tensor, found str"),
        (MLP((4, 5, 3)), torch.ones(2, 4, dtype=torch.int64), jn.InputError, "dtype torch.int64"),
        (MLP((4, 5, 3)), torch.ones(2, 4, dtype=torch.bool), jn.InputError, "needs real inputs"),
        (MLP((4, 5, 3)), torch.tensor(1.0), jn.InputError, "first axis is the batch"),
        (MLP((4, 5, 3)), torch.empty(0, 4), jn.InputError, "nothing may be empty"),
        (nn.Linear(4, 3), torch.randn(4), jn.InputError, r"output has shape \(3,\) for a batch of 4"),
        (LeNet(), torch.randn(1, 28, 28), jn.ModelError, "pass x.unsqueeze"),
        (lambda x: x.sum(), torch.randn(2, 4), jn.InputError, r"output has shape \(\)"),
        (lambda x: x.sum(0), torch.randn(2, 4), jn.InputError, "first axis must be the batch"),
        (lambda x: (x, x), torch.randn(2, 4), jn.InputError, "returned tuple with 0 of shape"),
        (lambda x: {"a": x, "b": x}, torch.randn(2, 4), jn.InputError, "Say which: output='a'"),
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
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(model, torch.randn(6, 4), engine=engine)


COUPLINGS = {
    "mean": lambda x: x + x.mean(0),
    "first sample": lambda x: x + x[0],
    "causal": lambda x: x.cumsum(0),
    "swapped pairs": lambda x: x + 0.1 * x[torch.arange(len(x)) ^ 1],
    "mean in one place": lambda x: torch.cat([x.mean(0, keepdim=True), x[1:]]),
}


@pytest.mark.parametrize("batch", [2, 4, 6, 8, 64])
@pytest.mark.parametrize("name", COUPLINGS)
def test_any_two_samples_that_see_each_other_are_found(name, batch):
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(COUPLINGS[name], torch.randn(batch, 3))


def test_a_batch_of_one_proves_nothing():
    def model(x):
        return x - x.mean(0)

    jn.linearize(model, torch.randn(1, 3))
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(model, torch.randn(4, 3))


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
    model = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    with pytest.raises(jn.UnsupportedModelError, match=r"does torch\.jit hide them"):
        jn.linearize(model, torch.randn(2, 4), engine="layerwise")
    assert "torch.jit" in jn.linearize(model, torch.randn(2, 4)).reason


def test_a_call_without_a_rule_is_named_and_the_others_keep_theirs():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    J = jn.linearize(lambda x: torch.special.i0(model(x)), x)
    assert J.engine == "layerwise"
    assert J.reason == "by autograd: special_i0 (it has no rule)"
    assert [step.name for step in J.tape.steps] == ["linear", "gelu", "special_i0 by autograd"]
    assert jn.linearize(model, x, engine="layerwise").reason is None


def test_a_loss_that_the_model_computes_on_the_way_is_no_obstacle():
    net, labels = MLP((4, 5, 3)), torch.tensor([0, 1])

    class WithLoss(nn.Module):
        adds = False

        def forward(self, x):
            logits = net(x)
            self.loss = F.cross_entropy(logits, labels)
            return logits + 0 * torch.tanh(logits) if self.adds else logits

    model, x = WithLoss(), torch.randn(2, 4)
    for _ in range(2):  # examined, then known
        J = jn.linearize(model, x)
        assert J.engine == "layerwise"
        torch.testing.assert_close(J.dense(), jn.linearize(net, x).dense())
        model.loss.backward()
        ours = [p.grad for p in net.parameters()]
        net.zero_grad()
        F.cross_entropy(net(x), labels).backward()
        torch.testing.assert_close(ours, [p.grad for p in net.parameters()])
        net.zero_grad()
    model.adds = True
    J = jn.linearize(model, x)  # another way, which is examined first
    assert J.verified
    assert "tanh" in {step.name for step in J.tape.steps}


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


@pytest.mark.parametrize(("forward", "backward"), [(3, 3), (3, -1), (-1, 3)])
def test_a_wrong_rule_is_found_out(monkeypatch, forward, backward):
    """The first time, products are compared with autograd's: a wrong rule costs speed, not truth."""
    wrong = Rule(lambda x: Call(lambda t: forward * t, lambda c: backward * c))
    monkeypatch.setitem(RULES, "neg", wrong)
    x = torch.randn(2, 4)
    J = jn.linearize(lambda x: -x, x)
    assert J.engine == "layerwise"
    assert re.search("by autograd: neg .*(differ from autograd's|not transposes)", J.reason)
    torch.testing.assert_close(J.jvp(x), -x)


def test_a_rule_that_fails_is_not_the_users_problem(monkeypatch):
    broken = Rule(lambda x: Call(lambda t: t, lambda c: c.view(7)))
    monkeypatch.setitem(RULES, "neg", broken)
    J = jn.linearize(lambda x: -x, torch.randn(2, 4))
    assert "a rule failed" in J.reason
    torch.testing.assert_close(J.dense(), -torch.eye(4).expand(2, 4, 4))


def _shown_by_another_view(x):
    y = torch.zeros_like(x)
    another = y[:]
    y[:, :2].copy_(x[:, :2])
    return another


@pytest.mark.parametrize(
    "branch",
    [_shown_by_another_view, torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))],
    ids=["view", "script"],
)
def test_a_branch_that_is_not_recorded_counts_even_at_weight_zero(branch):
    """As in residual branches that start at zero: what is learnt later must not be missed."""
    scale = nn.Parameter(torch.zeros(()))

    def model(x):
        return x + scale * branch(x)

    x = torch.randn(3, 4)
    J = jn.linearize(model, x)
    assert "not recorded" in J.reason
    J.vjp(torch.randn(3, 4)).square().sum().backward()
    assert scale.grad is not None
    assert scale.grad != 0


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def gradients(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, (g * x).sum(0)


class _Once(_Scaled):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return _Scaled.gradients(ctx, g)


class _Detached(_Scaled):
    @staticmethod
    def backward(ctx, g):
        return _Scaled.gradients(ctx, g.detach())


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("layer", [_Once, _Detached])
def test_a_backward_that_cannot_be_differentiated_is_found_out(layer, skip):
    """Of all this PyTorch itself says nothing: J v would be zero, or that of the skip connection alone."""
    x, scale = torch.randn(5, 4), torch.randn(4, requires_grad=True)

    def model(x):
        return layer.apply(x, scale) + (x if skip else 0)

    for _ in range(2):  # also when the model is known
        J = jn.linearize(model, x)
        with torch.no_grad():
            assert_close(J.vjp(torch.ones(5, 4)), (scale + skip).expand(5, 4))
            with pytest.raises(jn.UnsupportedModelError, match="once_differentiable"):
                J.jvp(x)
        with pytest.raises(jn.UnsupportedModelError, match=r"To measure, use spectral_norm\(J\)"):
            jn.SpectralPenalty()(J)
    wide = torch.randn(4, 7)
    J = jn.linearize(lambda x: model(x) @ wide, x)
    with torch.no_grad():  # as the message says, also where there are more outputs than inputs
        assert_close(J.dense(), (wide.T * (scale + skip)).expand(5, 7, 4))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.inner(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


def test_threads_leave_attention_as_it_was():
    x = torch.randn(2, 2, 5, 8)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: jn.linearize(Attention(), x), range(40)))
    assert torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.mem_efficient_sdp_enabled()


@pytest.mark.parametrize("before", [_shown_by_another_view, lambda x: torch.fft.irfft(torch.fft.rfft(x), 4)])
def test_batch_norm_is_held_fixed_behind_anything(before):
    norm = nn.BatchNorm1d(4)
    J = jn.linearize(lambda x: norm(before(x)), torch.randn(6, 4))
    u = torch.zeros(6, 4)
    u[0] = 1
    assert not J.vjp(u)[1:].any()


def test_half_precision_layer_norm_does_not_overflow():
    model, x = nn.LayerNorm(64).half(), (1000 * torch.randn(3, 64)).half()
    torch.testing.assert_close(jn.linearize(model, x).output, model(x), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("inplace", [False, True])
def test_hardsigmoid_has_all_derivatives(inplace):
    """PyTorch has no second one: without a rewriting, MobileNetV3 had no J v."""
    scale = torch.randn(4, dtype=torch.float64, requires_grad=True)
    x = 2 * torch.randn(3, 4, dtype=torch.float64)
    J = jn.linearize(lambda x: F.hardsigmoid(scale * x, inplace=inplace).exp(), x)
    inside = (scale * x).abs() < 3
    slope = torch.where(inside, scale / 6, 0) * F.hardsigmoid(scale * x.detach()).detach().exp()
    torch.testing.assert_close(J.jvp(torch.ones_like(x)), slope.detach(), rtol=1e-7, atol=1e-9)
    J.vjp(torch.ones_like(x)).sum().backward()
    exact = torch.exp((scale * x + 3).detach() / 6) * (1 / 6 + scale.detach() * x / 36)
    torch.testing.assert_close(scale.grad, torch.where(inside, exact, 0).sum(0), rtol=1e-6, atol=1e-9)


def test_a_zero_vector_can_be_normalized():
    """As the keys of padding in Swin V2: PyTorch's second derivative is NaN there."""
    weight = torch.ones(4, requires_grad=True)
    x = torch.cat([torch.zeros(1, 4), torch.randn(2, 4)])
    J = jn.linearize(lambda x: F.normalize(weight * x, eps=1e-2), x)
    torch.testing.assert_close(J.output, F.normalize(x))
    J.vjp(torch.ones(3, 4)).sum().backward()
    assert torch.isfinite(weight.grad).all()


def test_random_layers_draw_as_they_would_without_us():
    for layer in (nn.RReLU(inplace=True), nn.RReLU(), nn.Dropout(0.3), nn.AlphaDropout(0.3)):
        x = torch.randn(3, 400)
        for _ in range(2):  # examined, then known
            torch.manual_seed(5)
            expected = layer(x.clone())
            state = torch.get_rng_state()
            torch.manual_seed(5)
            torch.testing.assert_close(jn.linearize(layer, x).output, expected)
            assert torch.equal(torch.get_rng_state(), state)


def test_weights_that_changed_are_noticed():
    model = MLP((4, 5, 3))
    J = jn.linearize(model, torch.randn(2, 4))
    with torch.no_grad():
        model[1].weight += 1
    with pytest.raises(jn.InputError, match="Linearize again after optimizer"):
        J.jvp(torch.ones(2, 4))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("scale", [1e-4, 1e-5, 1e-6, 1e-8, 1e-10, 1e4])
def test_weights_that_have_died_away_or_grown_are_no_reason_to_doubt(activation, scale):
    """Squares of the products underflow, as they did in training with too large a weight of the bound."""
    torch.manual_seed(0)
    layers = [layer for _ in range(5) for layer in (nn.Linear(30, 30), activation())]
    model = nn.Sequential(*layers, nn.Linear(30, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    J = jn.linearize(model, torch.randn(5, 30))
    assert (J.engine, J.reason) == ("layerwise", None)
    jn.SpectralPenalty()(J).backward()


@pytest.fixture
def another_default_device():
    torch.set_default_device("meta")  # stands in for a GPU: nothing that lands there comes back
    yield
    torch.set_default_device(os.environ.get("JACNORM_DEVICE"))


def test_the_device_is_that_of_the_input_and_not_the_default(another_default_device):
    with torch.device("cpu"):
        layers = (nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        model, x, index = nn.Sequential(*layers, nn.Linear(64, 40)), torch.randn(4, 1, 8, 8), torch.arange(4)
    for penalty in (jn.SpectralPenalty(fraction=0.5), jn.FrobeniusPenalty(), jn.SpectralBoundPenalty()):
        for _ in range(2):
            penalty(jn.linearize(model, x), index=index).backward()
    J = jn.linearize(model, x)
    for found in (jn.spectral_norm(J).sigma, jn.induced_norm(J, "inf").lower, jn.frobenius_norm(J)):
        assert found.device.type == "cpu"
    assert jn.doctor(model, x).served


def test_a_freed_graph_is_explained():
    J = jn.linearize(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.randn(2, 4))
    J.output.sum().backward()
    with pytest.raises(jn.UnsupportedModelError, match="linearize again"):
        J.vjp(torch.ones(2, 4))


@pytest.mark.parametrize(
    "model",
    [
        lambda x: x * torch.ones(4, dtype=torch.float64),
        lambda x: torch.cat([x, torch.ones_like(x, dtype=torch.float64)], 1),
        lambda x: torch.relu(x).sum(1, dtype=torch.float64),
        lambda x: torch.maximum(x, torch.zeros(4, dtype=torch.float64)).double(),
    ],
)
def test_mixed_precision(model):
    x = torch.randn(3, 4)
    J = jn.linearize(model, x)
    assert J.engine == "layerwise"
    assert J.output.dtype == torch.float64
    expected = jn.linearize(model, x, engine="autograd").dense()
    torch.testing.assert_close(J.dense(), expected)
    jn.spectral_norm(J)


def test_bfloat16():
    model, x = MLP((4, 5, 3)), torch.randn(2, 4)
    expected = jn.spectral_norm(jn.linearize(model, x)).sigma
    J = jn.linearize(model.bfloat16(), x.bfloat16())
    torch.testing.assert_close(jn.spectral_norm(J).sigma.float(), expected, rtol=0.03, atol=0)


def test_bound_methods_are_known():
    model, x = MLP((4, 5, 3)), torch.randn(2, 4)
    assert [jn.linearize(model.forward, x).verified for _ in range(3)] == [True, True, False]


def _changes_a_part(x):
    y = 2 * x
    y[:, 0].mul_(5)
    return y


def _reads_another_view(x):
    y = 2 * x
    another = y[:, :2]
    y[:, 0].mul_(5)
    return torch.cat([another, y[:, 2:]], 1)


def _fills_what_another_view_shows(x):
    y = torch.zeros_like(x)
    another = y[:, :]
    y[:].copy_(2 * x)
    another[:, 0].mul_(5)
    return another + 0


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (_changes_a_part, None),
        (_reads_another_view, "a tensor was changed in place through a view of it"),
        (_fills_what_another_view_shows, "something depends on the input by a way that was not recorded"),
    ],
)
def test_a_tensor_changed_through_a_view(model, why):
    J = jn.linearize(model, torch.randn(3, 4))
    assert J.reason == why
    expected = torch.diag(torch.tensor([10.0, 2, 2, 2])).expand(3, 4, 4)
    torch.testing.assert_close(J.dense(), expected)


@pytest.mark.parametrize("overwrite", [lambda y: y.sub_(5), lambda y: y[:, :2].sub_(5)])
def test_an_activation_that_is_overwritten_is_refused_as_autograd_does(overwrite):
    """ReLU reads its mask off its own output, here and in autograd."""

    class Sometimes(nn.Module):
        overwrites = False

        def forward(self, x):
            y = torch.relu(x)
            z = 2 * y
            if self.overwrites:
                overwrite(y)
            return z

    model, x = Sometimes(), torch.randn(3, 4)
    jn.linearize(model, x)
    model.overwrites = True
    with pytest.raises(jn.UnsupportedModelError, match=r"writes into a tensor.*by an inplace operation"):
        jn.linearize(model, x)


@pytest.mark.parametrize("shape", [(8, 4, 60, 60), (8, 4, 61, 60), (2, 4, 4, 4)])
def test_max_pool_chooses_as_pytorch_does(shape):
    x = torch.randn(shape).round()  # with many ties
    model = nn.MaxPool2d(2, return_indices=True)
    chosen = []

    def pool(x):
        y, index = model(x)
        chosen.append(index)
        return y

    J = jn.linearize(pool, x)
    expected_y, expected = model(x)
    assert torch.equal(J.output, expected_y)
    assert torch.equal(chosen[0], expected)
    u = torch.randn_like(J.output)
    z = x.clone().requires_grad_()
    torch.testing.assert_close(J.vjp(u), torch.autograd.grad(model(z)[0], z, u)[0])


def test_a_new_path_through_the_model_is_noticed():
    class Sometimes(nn.Module):
        smooth = False

        def forward(self, x):
            x = F.dropout(self.norm(x), 0.5)
            return torch.tanh(x) if self.smooth else torch.relu(x)

    model, x = Sometimes(), torch.randn(3, 4)
    model.norm = nn.BatchNorm1d(4)
    plain = copy.deepcopy(model)
    for smooth in (False, False, True):
        model.smooth = plain.smooth = smooth
        torch.manual_seed(3)
        J = jn.linearize(model, x)
        assert J.engine == "layerwise"
        assert J.tape.steps[-1].name == ("tanh" if smooth else "relu")
        state = torch.get_rng_state()
        torch.manual_seed(3)
        torch.testing.assert_close(J.output, plain(x))
        assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_known_models_skip_the_check(monkeypatch):
    """But at the second, fourth, eighth … visit."""
    model, x, examined = MLP((4, 5, 3)), torch.randn(2, 4), set()

    def counted(*call):
        examined.add(visit)
        return check_call(*call)

    monkeypatch.setattr("jacnorm.recording.check_call", counted)
    for visit in range(1, 20):
        assert jn.linearize(model, x).verified == (visit in (1, 2, 4, 8, 16))
    assert examined == {1, 2, 4, 8, 16}


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


def test_parameters_before_sign_have_the_gradient_of_the_plain_model():
    """Zeros, which weight decay and DistributedDataParallel tell from none at all."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.signal, self.gate = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.signal(x) * torch.sign(self.gate(x))

    model, x = Gated(), torch.randn(2, 4)
    for _ in range(3):  # of which two are verified
        J = jn.linearize(model, x)
        assert J.engine == "layerwise"
        model.zero_grad()
        J.output.sum().backward()
        found = [p.grad for p in model.parameters()]
        model.zero_grad()
        model(x).sum().backward()
        torch.testing.assert_close(found, [p.grad for p in model.parameters()])


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
