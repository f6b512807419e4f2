"""Training steps under torch.compile give eager numbers; models may be compiled already."""

import pytest
import torch
import torch.nn.functional as F
from oracles import dense, pull, push
from torch import Tensor, nn
from torch.func import functional_call, grad

import jacnorm as jn
from jacnorm.engines.rules import maxpool, one_channel
from jacnorm.pytorch import half
from jacnorm.pytorch.tracing import CAN_TRACE

pytestmark = pytest.mark.skipif(not CAN_TRACE, reason="an older torch: refused, see recording.linearized")
SAMPLES = 12


class Residual(nn.Module):
    """A bit of everything: batch norm, a skip connection, pooling, dropout, in-place calls."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.second, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(27, 4)
        self.relu, self.dropout = nn.ReLU(inplace=True), nn.Dropout(0.3, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.norm(self.first(x)))
        h = F.max_pool2d(h + self.second(h), 2)
        return self.last(self.dropout(h.flatten(1)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 4))


def trained(build, penalties, batch_norm="fixed", index=False, batches=(6, 6), **compiler):
    """The losses of some steps, and all that there is to compare after them."""
    torch.manual_seed(0)
    model = build().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.randn(SAMPLES, 1, 6, 6, dtype=torch.float64), torch.randint(4, (SAMPLES,))
    linearize = penalties[0].linearize if len(penalties) == 1 else jn.linearize

    def loss_of(x, y, samples):
        J = linearize(model, x, batch_norm=batch_norm)
        return F.cross_entropy(J.output, y) + sum(penalty(J, index=samples) for penalty in penalties)

    step = torch.compile(loss_of, fullgraph=True, **compiler) if compiler else loss_of
    losses = []
    for i, size in enumerate(batches):
        torch.manual_seed(i)
        samples = torch.randperm(SAMPLES)[:size]
        loss = step(data[0][samples], data[1][samples], samples if index else None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    gradients = {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    states = {f"{i} {k}": v for i, p in enumerate(penalties) for k, v in p.state_dict().items()}
    return {"losses": torch.stack(losses), **gradients, **model.state_dict(), **states}


def assert_as_eager(build, make_penalties, backend="aot_eager", tolerance=1e-12, **options):
    torch._dynamo.reset()
    eager = trained(build, make_penalties(), **options)
    compiled = trained(build, make_penalties(), **options, backend=backend)
    assert eager.keys() == compiled.keys()
    torch.testing.assert_close(compiled, eager, rtol=tolerance, atol=tolerance)


def test_every_penalty_in_one_compiled_step():
    """Losses, gradients, stored vectors and places in random streams."""
    assert_as_eager(
        mlp,
        lambda: [
            jn.SpectralPenalty(0.1, iterations=2, h="square"),
            jn.SpectralPenalty(0.1, start="random"),
            jn.FrobeniusPenalty(0.1),
            jn.SpectralBoundPenalty(0.1),
            jn.AnalyticPenalty(0.1),
            jn.WeightDecay(0.1),
        ],
    )


def test_every_norm_in_one_compiled_step():
    assert_as_eager(
        mlp,
        lambda: [
            jn.SpectralPenalty(0.1, h=lambda s: (s - 1) ** 2, reduction="sum"),
            jn.SpectralPenalty(0.1, start="random", reduction="max"),
            jn.FrobeniusPenalty(0.1, "all", h=torch.sqrt),
            jn.GradientPenalty(0.1, None, h="square"),
            jn.SchattenPenalty(0.1),
            jn.InducedPenalty(0.1),
        ],
    )


def test_norms_of_a_smooth_map_into_itself_in_one_compiled_step():
    """And values of samples, whose gradient is asked for later."""
    torch._dynamo.reset()
    makers = {
        "trace": lambda: jn.TracePenalty(0.1),
        "radius": lambda: jn.SpectralRadiusPenalty(0.1),
        "margin": lambda: jn.MarginPenalty(0.1, radius=5.0, candidates=2),
        "samples": lambda: jn.SchattenPenalty(0.1, h="square", reduction="none"),
        "spectral": lambda: jn.SpectralPenalty(0.1, 3, start="output", reduction="none"),
    }
    x, labels = torch.randn(3, 5, dtype=torch.float64), torch.tensor([0, 4, 2])

    def loss(model, penalty):
        J = jn.linearize(model, x)
        values = penalty(J, labels=labels)
        return J.output.square().mean() + (values * torch.arange(1.0, 4.0)).sum()

    for name, make in makers.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.Softplus(), nn.Linear(6, 5)).double()
        eager = loss(model, make())
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)(model, make())
        expected = torch.autograd.grad(eager, model.parameters())
        found = torch.autograd.grad(compiled, model.parameters())
        torch.testing.assert_close(compiled, eager, msg=name)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9, msg=name)


def test_stored_vectors_are_those_of_eager_steps():
    def met_before():
        penalty = jn.SpectralPenalty(0.1, samples=SAMPLES)
        penalty.u = torch.eye(4, dtype=torch.float64).repeat(SAMPLES // 4 + 1, 1)[:SAMPLES]
        return [penalty]

    def wide():  # no sample is dead: it would begin anew, which a compiled step cannot
        return nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 4))

    assert_as_eager(wide, met_before, index=True, batches=[6] * 4)


def test_samples_that_come_by_for_the_first_time():
    """The value and what is stored; the gradient has another form, since a compiled step cannot ask."""
    torch._dynamo.reset()
    eager, compiled = (
        trained(mlp, [jn.SpectralPenalty(0.1, samples=SAMPLES)], index=True, batches=[6], **compiler)
        for compiler in ({}, {"backend": "aot_eager"})
    )
    for name in ("losses", "0 u"):
        torch.testing.assert_close(compiled[name], eager[name], rtol=1e-12, atol=1e-12)
    assert eager["0 u"].any()


@pytest.mark.parametrize(("batch_norm", "batches"), [("fixed", (6,)), ("flowing", (6, 6, 4))])
def test_a_net_with_batch_norm_and_dropout(batch_norm, batches):
    """Running statistics are updated once, masks drawn once for output and J. A last batch is smaller."""
    assert_as_eager(Residual, lambda: [jn.SpectralPenalty(0.5)], batch_norm=batch_norm, batches=batches)


class Tokens(nn.Module):
    """PyTorch's own encoder layer, and a norm: functions that are made of others."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (6, 6)))
        self.layer, self.last = nn.TransformerEncoderLayer(6, 2, 8, 0.2, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.normalize(self.layer(self.tokens(x)).mean(1), dim=-1))


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_functions_that_are_made_of_others_compile(mode):
    assert_as_eager(lambda: Tokens().train(mode), lambda: [jn.SpectralPenalty(0.5), jn.FrobeniusPenalty(0.5)])


def test_the_fast_ways_of_grey_images_compile(monkeypatch):
    monkeypatch.setattr(one_channel, "WORTHWHILE", 0)
    monkeypatch.setattr(maxpool, "WORTHWHILE", 0)

    def lenet():
        return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *mlp_of(18))

    def mlp_of(n):
        return nn.Flatten(), nn.Linear(n, 4)

    assert_as_eager(lenet, lambda: [jn.SpectralPenalty(0.5)], batches=(6,))


def smooth():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))


def test_a_smooth_net():
    assert_as_eager(smooth, lambda: [jn.SpectralPenalty(0.5), jn.FrobeniusPenalty(0.5)])


def test_lazy_penalties():
    penalties = lambda: [jn.SpectralPenalty(0.1, every=2), jn.FrobeniusPenalty(0.1, fraction=0.5)]
    assert_as_eager(mlp, penalties, batches=[6] * 4)
    assert_as_eager(mlp, lambda: penalties()[:1], batches=[6] * 4)  # steps without a record


class Transformer(nn.Module):
    """Small, but with all that one has."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Linear(6, 8), nn.Parameter(torch.randn(6, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks, self.norm = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.embed(x.view(len(x), 6, 6)) + self.place)
        return self.head(self.norm(h).mean(1))


def met_all_before():
    penalty = jn.SpectralPenalty(0.1, samples=SAMPLES)
    penalty.u = torch.eye(4, dtype=torch.float64).repeat(SAMPLES // 4, 1)
    return [penalty]


BOTH = pytest.mark.parametrize("backend", ["eager", "aot_eager"])


@BOTH
def test_a_training_step_of_a_transformer(backend):
    """With stored vectors, and Frobenius."""
    assert_as_eager(Transformer, met_all_before, backend, index=True, batches=[6] * 3)
    assert_as_eager(Transformer, lambda: [jn.FrobeniusPenalty(0.1)], backend)


class Spelled(nn.Module):
    """Smooth, with a layer norm whose oracle has no kernel of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.weight, self.bias = nn.Linear(6, 8), *(nn.Parameter(torch.randn(8)) for _ in "wb")
        self.last, self.written_out = nn.Linear(8, 4), False

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.written_out:
            h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
            h = h * self.weight + self.bias
        else:
            h = F.layer_norm(h, (8,), self.weight, self.bias)
        if self.written_out:
            return self.last(h * torch.sigmoid(h))
        return self.last(F.silu(h))


class Velocity(nn.Module):
    """u(z, r, t) of a flow, with smooth layers whose backward kernels have no derivative of their own."""

    def __init__(self):
        super().__init__()
        self.space, self.times, self.norm = nn.Linear(6, 16), nn.Linear(2, 16), nn.LayerNorm(16)
        self.last = nn.Linear(16, 6)

    def forward(self, z: Tensor, r: Tensor, t: Tensor) -> Tensor:
        h = F.silu(self.space(z)) * F.mish(self.times(torch.stack([r, t], 1)))
        return self.last(F.silu(self.norm(h)))


def mean_flow(model, z, r, t, v, flowing):
    J = jn.linearize(model, (z, r, t))
    along = J.jvp((v, None, torch.ones_like(t)))
    target = v - (t - r)[:, None] * (along if flowing else along.detach())
    return (J.output - target).square().mean()


@BOTH
@pytest.mark.parametrize("flowing", [False, True], ids=["detached", "flowing"])
def test_a_mean_flow_step(flowing, backend):
    """With several inputs, and a gradient that flows through J v or does not."""
    torch._dynamo.reset()
    model = Velocity().double()
    z, v, r, t = torch.randn(2, 5, 6).double().unbind() + torch.rand(2, 5).double().unbind()
    eager = mean_flow(model, z, r, t, v, flowing)
    compiled = torch.compile(mean_flow, backend=backend, fullgraph=True)(model, z, r, t, v, flowing)
    expected = torch.autograd.grad(eager, model.parameters())
    torch.testing.assert_close(compiled, eager)
    torch.testing.assert_close(torch.autograd.grad(compiled, model.parameters()), expected)


@pytest.mark.parametrize("direction", ["jvp", "vjp"])
@pytest.mark.parametrize("name", ["compiled", "torch.func"])
def test_gradients_flow_through_products(direction, name):
    """Of kernels without a derivative, in closed form. LayerNorm is written out in the oracle."""
    torch._dynamo.reset()
    model, x = Spelled().double(), torch.randn(5, 6).double()
    model.written_out = True
    D = dense(model, x)
    model.written_out = False
    shape, product = ((5, 6), push) if direction == "jvp" else ((5, 4), pull)
    w = torch.randn(shape, dtype=torch.float64)
    expected = torch.autograd.grad(product(D, w).square().sum(), model.parameters(), allow_unused=True)

    def run(z, parameters):
        return functional_call(model, parameters, (z,))

    def loss(parameters):
        return getattr(jn.linearize(run, x, parameters), direction)(w).square().sum()

    def of_model(x):
        return getattr(jn.linearize(model, x), direction)(w).square().sum()

    if name == "compiled":
        value = torch.compile(of_model, backend="aot_eager", fullgraph=True)(x)
        found = torch.autograd.grad(value, model.parameters(), allow_unused=True)
    else:
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        jn.linearize(run, x, parameters)
        by_name = grad(loss)(parameters)
        found = tuple(by_name[name] for name, _ in model.named_parameters())
    for a, b in zip(found, expected, strict=True):
        a, b = (torch.zeros(()).double() if g is None else g for g in (a, b))
        torch.testing.assert_close(a, b.expand_as(a))


@pytest.mark.parametrize("whose", ["linearize", "penalty"])
def test_half_precision(whose, monkeypatch):
    """Whether it pays is decided outside of the graph."""
    torch._dynamo.reset()
    monkeypatch.setattr(half, "_why_not", lambda *_: None)
    half._tried.cache_clear()
    model = nn.Sequential(nn.Linear(96, 128), nn.SiLU(), nn.LayerNorm(128), nn.Linear(128, 80))
    x, found = torch.randn(4, 96), {}

    def loss(x, precision):
        linearize = jn.linearize if whose == "linearize" else penalty.linearize
        J = linearize(model, x, precision=precision)
        return J.output.square().mean() + penalty(J)

    for compiled in (False, True):
        for precision in (None, torch.bfloat16):
            penalty = jn.FrobeniusPenalty(0.1)
            step = torch.compile(loss, backend="aot_eager", fullgraph=True) if compiled else loss
            value = step(x, precision)
            gradients = torch.autograd.grad(value, model.parameters(), allow_unused=True)
            found[compiled, precision] = torch.cat([g.flatten() for g in gradients if g is not None])
    half._tried.cache_clear()
    size = found[False, None].norm()
    for compiled in (False, True):
        assert 1e-5 < (found[compiled, torch.bfloat16] - found[compiled, None]).norm() / size < 0.02
    # The statistics of a norm are computed again in a compiled step, from x in half precision.
    assert (found[True, torch.bfloat16] - found[False, torch.bfloat16]).norm() / size < 0.01


@pytest.mark.long
def test_inductor():
    assert_as_eager(Transformer, met_all_before, "inductor", 1e-9, index=True, batches=[6] * 2)
    assert_as_eager(mlp, lambda: [jn.SpectralPenalty(0.5), jn.FrobeniusPenalty(0.5)], backend="inductor")


def test_the_compiled_graph_differentiates_nothing():
    """Without double backward: every product is a plain call, and the one graph holds them all."""
    torch._dynamo.reset()
    model, penalty, graphs = mlp(), jn.SpectralPenalty(0.1), []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    def loss_of(x):
        J = jn.linearize(model, x)
        return J.output.square().mean() + penalty(J)

    torch.compile(loss_of, fullgraph=True, backend=keep)(torch.randn(3, 36)).backward()
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if node.op.startswith("call")]
    assert sum("function linear" in name for name in called) == 4  # two layers, twice: x, J v
    assert not [name for name in called if "autograd.grad" in name]


# ---- What does not compile says so ------------------------------------------------------------------


class Through(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.last = function, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(x))


CANNOT = {
    "without a rule": (torch.special.i0, {}, r"special_i0 \(it has no rule\). Leave linearize and"),
    "hidden": (lambda x: F.pad(x, (1, -1)), {}, "hides calls .* pad"),
    "hidden branch": (lambda x: abs(x) + x, {}, "hides calls .* abs"),
    "sections": (F.relu, {"at": "last"}, "to=, through= and coupled= do not work inside torch.compile"),
    "coupled": (lambda x: x - x.mean(0), {}, "The output of one sample depends on the input of another"),
}


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_compiled_is_refused(name, fullgraph):
    torch._dynamo.reset()
    function, options, message = CANNOT[name]
    model = Through(function)

    def output_of(x):
        return jn.linearize(model, x, **options).output

    with pytest.raises(RuntimeError, match=message):
        torch.compile(output_of, fullgraph=fullgraph, backend="eager")(torch.randn(4, 6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jn.SpectralPenalty(0.1, budget=1.3), "give every= instead"),
        (lambda: jn.SpectralPenalty(0.1), r"SpectralPenalty\(samples=len\(dataset\)\)"),
    ],
)
def test_penalties_that_look_at_values_say_what_to_do(make, message):
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match=message):
        trained(mlp, [make()], index=True, backend="eager")


def test_samples_makes_room_at_once():
    model, penalty = mlp(), jn.SpectralPenalty(0.1, samples=50)
    penalty(jn.linearize(model, torch.randn(2, 36)), index=torch.tensor([0, 3]))
    assert penalty.u.shape == (50, 4)
    with pytest.raises(jn.InputError, match="samples=0"):
        jn.SpectralPenalty(0.1, samples=0)


# ---- Models that are compiled already ---------------------------------------------------------------


def never(graph, _):
    raise AssertionError("linearize should have run this eagerly")


def _in_place(model):
    model.compile(backend=never)
    return model


def _a_part(model):
    model.second = torch.compile(model.second, backend=never)
    return model


def _a_function_inside(model):
    model.relu.forward = torch.compile(torch.relu, backend=never)
    return model


COMPILED = {
    "module": lambda model: torch.compile(model, backend=never),
    "in place": _in_place,
    "a part": _a_part,
    "function": lambda model: torch.compile(lambda x: model(x), backend=never),
    "a function inside": _a_function_inside,
}


def _gradients(model, parameters):
    for seed in (1, 2):  # the first run verifies, the second only records
        torch.manual_seed(seed)
        J = jn.linearize(model, torch.randn(6, 1, 6, 6), batch_norm="flowing")
        loss = J.output.square().mean() + jn.SpectralPenalty(0.1)(J)
    assert J.engine == "layerwise"
    return loss.detach(), torch.autograd.grad(loss, list(parameters))


@pytest.mark.parametrize("kind", COMPILED)
def test_a_compiled_model_is_as_good_as_any(kind):
    found = []
    for wrap in (lambda model: model, COMPILED[kind]):
        torch.manual_seed(0)
        model = Residual()
        found.append((_gradients(wrap(model), model.parameters()), dict(model.named_buffers())))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_names_of_layers_are_those_of_the_model_that_was_compiled():
    J = jn.linearize(torch.compile(mlp(), backend=never), torch.randn(2, 36), at="1", to="3")
    assert J.input_shape == (2, 5)


def test_the_doctor_tells():
    x, told = torch.randn(6, 36), "Compile the function that calls linearize and the penalty"
    assert told not in " ".join(str(jn.doctor(mlp(), x)).split())
    assert told in " ".join(str(jn.doctor(torch.compile(mlp(), backend="eager"), x)).split())


@pytest.mark.parametrize(
    "script", [torch.jit.script, lambda model: torch.jit.trace(model, torch.ones(2, 36))]
)
def test_scripted_models_go_by_autograd(script):
    model, x = mlp(), torch.randn(3, 36)
    J, expected = jn.linearize(script(model), x), jn.linearize(model, x)
    assert J.engine == "autograd"
    assert "does torch.jit hide them" in str(J.reason)
    torch.testing.assert_close(J.dense(), expected.dense())
    found = [torch.autograd.grad(jn.FrobeniusPenalty()(L), model[1].weight)[0] for L in (J, expected)]
    torch.testing.assert_close(*found)


def test_older_versions_are_told(monkeypatch):
    monkeypatch.setattr("jacnorm.recording.CAN_TRACE", False)
    with pytest.raises(RuntimeError, match=r"linearize needs torch 2\.13 or later; this is 2\."):
        torch.compile(lambda x: jn.linearize(nn.Linear(2, 2), x).output, backend="eager")(torch.randn(3, 2))


def test_tracing_leaves_no_trace_of_its_own_runs():
    """What comes before linearize in the compiled function runs once, if the model is known already."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    body, head = nn.BatchNorm1d(5), nn.Linear(5, 3)
    x = torch.randn(4, 5)
    jn.linearize(head, x)
    torch.compile(lambda x: jn.linearize(head, body(x)).output, fullgraph=True, backend="eager")(x)
    assert body.num_batches_tracked == 1
    torch.testing.assert_close(body.running_mean, 0.1 * x.mean(0))
