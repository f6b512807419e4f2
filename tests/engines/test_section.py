"""Jacobians between hidden layers, against autograd on the model with one output replaced."""

import copy

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_near, dense, gradient, mean_sigma, push
from torch import nn

import jacnorm as jn

ENGINES = ["layerwise", "autograd"]
F64 = torch.float64


class Net(nn.Module):
    """A skip around most of it, layers that write in place, and one that hands on its own input."""

    def __init__(self, before=F.relu, after=F.relu, middle=F.relu):
        super().__init__()
        self.stem, self.act, self.drop = nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Dropout()
        self.block = nn.Sequential(nn.Linear(6, 7), nn.ReLU(inplace=True), nn.Linear(7, 6))
        self.side, self.fc = nn.Linear(5, 6), nn.Linear(6, 4)
        self.before, self.after, self.middle = before, after, middle

    def forward(self, x):
        h = self.act(self.stem(self.before(x)))
        b = self.block(self.drop(h))
        b += h
        return self.after(self.fc(self.middle(b) * torch.sigmoid(self.side(x))))


def replaced(model, x, at, to, z):
    """The outputs of `at` and `to` (or x and the model's) where `at` gives z, if there is a z."""
    seen = {}
    named = dict(model.named_modules())

    def at_hook(module, args, y):
        seen["at"] = y.clone() if z is None else z.clone()
        return seen["at"].clone()

    def to_hook(module, args, y):
        seen["to"] = y.clone()

    hooks = [named[at].register_forward_hook(at_hook)] if at else []
    hooks += [named[to].register_forward_hook(to_hook)] if to else []
    inside = (x if z is None or at else z).clone()
    output = model(inside)
    for hook in hooks:
        hook.remove()
    return seen.get("at", inside), seen.get("to", output)


def dense_between(model, x, at, to):
    """D between the outputs of `at` and `to`. It depends on the weights before `at`: they move its point."""
    point, _ = replaced(model, x, at, to, None)
    return dense(lambda z: replaced(model, x, at, to, z)[1], point)


def make(**functions):
    torch.manual_seed(0)
    return Net(**functions).to(F64).eval(), torch.randn(3, 5, dtype=F64)


SECTIONS = [
    (None, "block"),
    ("stem", None),
    ("stem", "block"),
    ("stem", "act"),
    ("act", None),
    ("drop", None),
    ("drop", "fc"),
    ("block.0", "block"),
    ("block.1", "fc"),
    ("block", None),
    ("fc", None),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("middle", [F.relu, torch.tanh])  # which is smooth, so that D depends on its point
@pytest.mark.parametrize(("at", "to"), SECTIONS)
def test_products_and_gradients(at, to, middle, engine):
    model, x = make(middle=middle)
    D = dense_between(model, x, at, to)
    expected = gradient(mean_sigma(D) + model(x).square().sum(), model)
    for _ in range(2):  # the second run takes the fast path
        J = jn.linearize(model, x, at=at, to=to, engine=engine)
        assert J.engine == engine
        torch.testing.assert_close(J.output, model(x))
        assert (J.output_shape[1:].numel(), J.input_shape[1:].numel()) == D.shape[1:]
        assert_near(J.dense(), D, 1e-9)
        v = torch.randn(J.input_shape, dtype=F64)
        assert_near(J.jvp(v), push(D, v), 1e-9)
        loss = jn.AnalyticPenalty(weight=1.0)(J) + J.output.square().sum()
        assert_near(gradient(loss, model), expected, 1e-9)


def test_the_way_around_does_not_count():
    """`drop` gives its own input back, and the skip takes that too."""
    model, x = make()
    weights = [model.block[0], model.block[2], model.fc]
    J = jn.linearize(model, x, at="drop", to="block")
    h = F.relu(model.stem(F.relu(x)))
    mask = (weights[0](h) > 0).to(F64)
    expected = weights[1].weight @ (mask[:, :, None] * weights[0].weight)
    torch.testing.assert_close(J.dense(), expected)


def test_only_what_lies_between_needs_rules():
    hidden = torch.jit.script(nn.Tanh())
    model, x = make(before=hidden, after=hidden)
    assert jn.linearize(model, x).engine == "autograd"
    for _ in range(2):
        J = jn.linearize(model, x, at="stem", to="fc")
        assert J.engine == "layerwise"
        assert len(J.layers) == 3
        torch.testing.assert_close(J.dense(), dense_between(model, x, "stem", "fc"))
    assert (jn.product_bound(J) >= jn.spectral_norm(J).sigma).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_frozen_beginning(engine):
    model, x = make()
    model.stem.requires_grad_(False)
    model.side.requires_grad_(False)
    J = jn.linearize(model, x, at="stem", engine=engine)
    torch.testing.assert_close(J.dense(), dense_between(model, x, "stem", None))
    jn.SpectralPenalty()(J).backward()
    assert model.fc.weight.grad.any()
    assert model.stem.weight.grad is None


def test_every_penalty_and_norm_takes_it():
    model, x = make()
    J = jn.linearize(model, x, at="stem", to="block")
    A = J.dense().detach()
    torch.testing.assert_close(jn.spectral_norm(J).sigma, torch.linalg.matrix_norm(A, 2))
    torch.testing.assert_close(jn.frobenius_norm(J), torch.linalg.matrix_norm(A))
    penalty = jn.SpectralPenalty(weight=1.0)
    for _ in range(200):
        value = penalty(J, index=torch.arange(3))
        value.backward(retain_graph=True)
    torch.testing.assert_close(value.detach(), torch.linalg.matrix_norm(A, 2).mean())
    assert jn.FrobeniusPenalty()(J) > 0
    jn.SpectralBoundPenalty()(J)


def test_tokens():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.randint(11, (3, 3))
    J = jn.linearize(model, x, at="0")
    assert J.input_shape == (3, 3, 4)
    mask = (model[2](model[0](x).flatten(1)) > 0).float()
    torch.testing.assert_close(J.dense(), model[4].weight @ (mask[:, :, None] * model[2].weight))
    with pytest.raises(jn.InputError, match="at='0'"):
        jn.linearize(model, x)


def batch_norms():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 6), nn.BatchNorm1d(6)),
        *(nn.ReLU(), nn.Linear(6, 3), nn.BatchNorm1d(3)),
    ).to(F64)


@pytest.mark.parametrize("convention", ["fixed", "flowing"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("times", [1, 2])
def test_batch_norm_in_training(engine, convention, times):
    model, plain, x = batch_norms(), batch_norms(), torch.randn(8, 5, dtype=F64)
    for _ in range(times):
        J = jn.linearize(model, x, at="2", to="6", engine=engine, batch_norm=convention)
        expected = plain(x)
    torch.testing.assert_close(J.output, expected)
    torch.testing.assert_close(model.state_dict(), plain.state_dict())  # running statistics too

    h = plain[:3](x)
    before = plain[3](h)
    var = before.var(0, correction=0)
    scale = plain[4].weight / torch.sqrt((var if convention == "flowing" else var.detach()) + 1e-5)
    mask = (plain[4](before) > 0).to(F64)
    by_hand = plain[6].weight @ (mask[:, :, None] * scale[:, None] * plain[3].weight)
    torch.testing.assert_close(J.dense(), by_hand)
    torch.linalg.matrix_norm(by_hand, 2).mean().backward()
    jn.AnalyticPenalty(weight=1.0)(J).backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        a, b = (torch.zeros_like(p) if p.grad is None else p.grad for p in (ours, theirs))
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_the_loss_trains_as_without_us():
    model, plain, x = batch_norms(), batch_norms(), torch.randn(8, 5, dtype=F64)
    for engine in ("auto", "auto", "autograd"):
        J = jn.linearize(model, x, at="0", to="5", engine=engine)
        for m, y in ((model, J.output), (plain, plain(x))):
            m.zero_grad()
            y.square().sum().backward()
        ours, theirs = ([p.grad for p in m.parameters()] for m in (model, plain))
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_new_path_behind_batch_norm_is_noticed_and_undone():
    class Sometimes(nn.Module):
        smooth = False

        def __init__(self):
            super().__init__()
            self.norm, self.drop, self.fc = nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 2)

        def forward(self, x):
            x = self.drop(self.norm(x))
            return self.fc(torch.tanh(x) if self.smooth else torch.relu(x))

    model = Sometimes()
    plain, x = copy.deepcopy(model), torch.randn(4, 5)
    for smooth in (False, False, True):
        model.smooth = plain.smooth = smooth
        torch.manual_seed(3)
        J = jn.linearize(model, x, at="drop")
        assert ("tanh" in {step.name for step in J.tape.steps}) == smooth
        torch.manual_seed(3)
        torch.testing.assert_close(J.output, plain(x))
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.relu, self.lstm = nn.Linear(4, 4), nn.ReLU(), nn.LSTM(4, 4, batch_first=True)
        self.mean, self.unused, self.other = nn.Flatten(0), nn.Linear(4, 4), nn.Linear(4, 4)
        self.count, self.fixed = nn.Identity(), nn.Identity()

    def forward(self, x):
        y = self.relu(self.layer(x))
        z, _ = self.lstm(y[:, None])
        self.mean(y)
        self.count(y.argmax(1))
        self.other(x)
        return self.relu(z[:, 0]) + self.fixed(y.detach())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"at": "layr"}, "no submodule 'layr'. Did you mean 'layer'"),
        ({"to": "ReLU"}, "no submodule 'ReLU'"),
        ({"at": ""}, "no submodule ''"),
        ({"at": "relu"}, "'relu' runs more than once"),
        ({"to": "relu"}, "'relu' runs more than once"),
        ({"at": "lstm"}, "'lstm' returned tuple"),
        ({"to": "lstm"}, "'lstm' returned tuple"),
        ({"at": "count"}, "'count' returned torch.int64"),
        ({"to": "mean"}, r"'mean' has shape \(12,\) for a batch of 3"),
        ({"at": "unused"}, "did not run its submodule 'unused'"),
        ({"to": "unused"}, "did not run its submodule 'unused'"),
        ({"at": "layer", "to": "other"}, "output of 'other' does not depend on the output of 'layer'"),
        ({"at": "fixed", "to": "layer"}, "output of 'layer' does not depend on the output of 'fixed'"),
        ({"at": "other"}, "model's output does not depend on the output of 'other'"),
        ({"to": "fixed"}, "output of 'fixed' does not depend on x"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_what_cannot_be_named(names, message, engine):
    model = Odd()
    with pytest.raises(jn.InputError, match=message):
        jn.linearize(model, torch.randn(3, 4), engine=engine, **names)
    assert not any(m._forward_hooks for m in model.modules())


def test_a_function_has_no_submodules():
    with pytest.raises(jn.InputError, match=r"Submodules have names in .* found function"):
        jn.linearize(lambda x: x, torch.randn(2, 3), at="0")
    with pytest.raises(jn.InputError, match="has no submodules, so none called 'body'"):
        jn.linearize(nn.Linear(3, 3), torch.randn(2, 3), to="body")


def test_samples_that_meet_before_or_behind_the_section_do_not_matter():
    class Coupled(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            y = self.b(torch.relu(self.a(x - x.mean(0))))
            return y - y.mean(0)

    model, x = Coupled(), torch.randn(4, 3)
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(model, x)
    mask = (model.a(x - x.mean(0)) > 0).float()
    torch.testing.assert_close(
        jn.linearize(model, x, at="a", to="b").dense(), model.b.weight * mask[:, None, :]
    )
    with pytest.raises(jn.CoupledSamplesError, match="across the first axis"):
        jn.linearize(model, x, at="a")


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_measuring_without_gradients(context):
    model, x = make()
    expected = jn.linearize(model, x, at="stem", to="fc").dense().detach()
    with context():
        for engine in ENGINES:
            J = jn.linearize(model, x * 1, at="stem", to="fc", engine=engine)
            torch.testing.assert_close(J.dense(), expected)
