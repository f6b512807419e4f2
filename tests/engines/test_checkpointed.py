"""Activation checkpointing is served by rule: the numbers are those of the model without it."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from agreement import assert_products, ways
from live import Live
from oracles import arrived, dense, gradient
from torch import nn
from torch.utils.checkpoint import checkpoint

import jacnorm as jn
from jacnorm.engines import lowered
from jacnorm.lab.bench.nets import Blocks
from jacnorm.pytorch import half

KINDS = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "not reentrant"])


class Recomputed(nn.Module):
    """`before`, a function that is checkpointed, and `after`. Without `recompute`, the plain model."""

    def __init__(self, function, reentrant, recompute=True):
        super().__init__()
        self.before, self.function, self.after = nn.Linear(6, 8), function, nn.Linear(8, 4)
        self.reentrant, self.recompute = reentrant, recompute

    def forward(self, x):
        h = self.before(x)
        if not self.recompute:
            return self.after(self.function(h))
        return self.after(checkpoint(self.function, h, use_reentrant=self.reentrant))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.inner(x.view(len(x), 1, -1, 8)).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).view_as(x)


def inside(*layers):
    return nn.Sequential(nn.Linear(8, 8), *layers)


FUNCTIONS = {
    "piecewise linear": lambda: inside(nn.ReLU(), nn.Linear(8, 8)),
    "smooth": lambda: inside(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.SiLU()),
    "attention": lambda: inside(Attention(), nn.Tanh()),
    "batch norm": lambda: inside(nn.BatchNorm1d(8), nn.Tanh()),
    "a call without a rule": lambda: inside(Without()),
}


class Without(nn.Module):
    def forward(self, x):
        return torch.special.i0(x)


def made(function, reentrant):
    """The model, the plain one with the same weights, and a batch."""
    model = Recomputed(function, reentrant).double()
    plain = copy.deepcopy(model)
    plain.recompute = False
    return model, plain, torch.randn(5, 6, dtype=torch.float64)


def assert_as_plain(model, plain, x):
    """Output and its gradient, products, and gradients of uᵀJ v: beside those of the plain model."""
    D, weights = dense(plain, x), list(model.parameters())
    J = jn.linearize(model, x)
    assert J.engine == "layerwise"
    expected = plain(x)
    torch.testing.assert_close(J.output, expected)
    torch.testing.assert_close(
        gradient(J.output.square().sum(), model), gradient(expected.square().sum(), plain)
    )
    J = jn.linearize(model, x)
    assert_products(J, D, 1e-9)
    generator = torch.Generator().manual_seed(4)
    u, v = (torch.randn(s, dtype=x.dtype, generator=generator) for s in (J.output_shape, J.input_shape))
    exact = gradient((D @ v.unsqueeze(-1) * u.unsqueeze(-1)).sum(), plain)
    for way, value in ways(J, u, v):
        torch.testing.assert_close(gradient(value, weights), exact, msg=lambda m, way=way: f"{way}: {m}")


@KINDS
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_and_gradients_are_those_of_the_plain_model(name, reentrant):
    assert_as_plain(*made(FUNCTIONS[name](), reentrant))


@KINDS
@pytest.mark.parametrize("penalty", [jn.SpectralPenalty(0.5), jn.FrobeniusPenalty(0.5)], ids=str)
def test_a_step_with_a_penalty(penalty, reentrant):
    """One backward() for loss and penalty."""
    model, plain, x = made(FUNCTIONS["smooth"](), reentrant)
    for net in (model, plain):
        J = jn.linearize(net, x)
        (J.output.square().mean() + copy.deepcopy(penalty)(J)).backward()
    torch.testing.assert_close(arrived(model), arrived(plain))


@KINDS
def test_the_same_masks_of_dropout_and_the_same_random_numbers_afterwards(reentrant):
    model, plain, x = made(inside(nn.Dropout(0.5)), reentrant)
    states, found = [], []
    for net in (model, plain):
        jn.linearize(net, x)
        torch.manual_seed(3)
        J = jn.linearize(net, x)
        found.append((J.output, J.dense(), gradient(J.jvp(x).square().sum(), net)))
        states.append(torch.get_rng_state())
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
    assert torch.equal(*states)


@KINDS
def test_statistics_of_batch_norm_move_as_in_a_plain_checkpoint(reentrant):
    """Once in the forward pass, and not again when it is computed again. (PyTorch itself moves them again in
    each backward pass.)"""
    model, plain, x = made(FUNCTIONS["batch norm"](), reentrant)
    for net in (model, plain):
        J = jn.linearize(net, x)
        (J.output.sum() + jn.FrobeniusPenalty(0.1)(J)).backward()
    torch.testing.assert_close(dict(model.named_buffers()), dict(plain.named_buffers()))
    assert model.function[1].num_batches_tracked == 1


@KINDS
def test_several_arguments_and_results(reentrant):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.layer = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 8)
            self.recompute = True

        def both(self, a, factor, b):
            return torch.sigmoid(self.layer(a)) * b, factor, a - b

        def forward(self, x):
            a, b = self.first(x), self.second(x).tanh()
            if not self.recompute:
                p, factor, q = self.both(a, 3.0, b)
            else:
                p, factor, q = checkpoint(self.both, a, 3.0, b, use_reentrant=reentrant)
            return factor * p.sum(1, keepdim=True) + q

    model = Two().double()
    plain = copy.deepcopy(model)
    plain.recompute = False
    assert_as_plain(model, plain, torch.randn(5, 6, dtype=torch.float64))


@KINDS
def test_a_function_that_computes_something_else_the_second_time_is_refused(reentrant):
    count = [0]

    def restless(h):
        count[0] += 1
        return h * count[0]

    model, _, x = made(restless, reentrant)
    with pytest.raises(jn.UnsupportedModelError, match="is not what the model computed"):
        jn.linearize(model, x)


class Nested(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.outer = inside(nn.LayerNorm(8), nn.BatchNorm1d(8), nn.SiLU()), nn.Linear(8, 8)
        self.reentrant, self.recompute = reentrant, True

    def forward(self, h):
        h = checkpoint(self.inner, h, use_reentrant=self.reentrant) if self.recompute else self.inner(h)
        return self.outer(h).tanh()


@KINDS
def test_one_inside_another(reentrant):
    model, plain, x = made(Nested(reentrant), reentrant)
    plain.function.recompute = False
    assert_as_plain(model, plain, x)
    model, plain, x = made(Nested(reentrant), reentrant)
    plain.function.recompute = False
    for net in (model, plain):
        J = jn.linearize(net, x)
        (J.output.sum() + jn.FrobeniusPenalty(0.1)(J)).backward()
    torch.testing.assert_close(dict(model.named_buffers()), dict(plain.named_buffers()))


@KINDS
def test_half_precision_inside(reentrant, monkeypatch):
    monkeypatch.setattr(half, "_why_not", lambda *_: None)
    monkeypatch.setattr(lowered, "LEAST", 1)
    half._tried.cache_clear()
    model, plain, x = made(FUNCTIONS["smooth"](), reentrant)
    model, plain, x = model.float(), plain.float(), x.float()
    products = {
        (net, precision): jn.linearize(net, x, precision=precision).jvp(x).detach()
        for net in (model, plain)
        for precision in (None, torch.bfloat16)
    }
    half._tried.cache_clear()
    lowest = products[model, torch.bfloat16]
    torch.testing.assert_close(lowest, products[plain, torch.bfloat16], rtol=1e-4, atol=1e-4)
    assert 1e-4 < (lowest - products[model, None]).norm() / lowest.norm() < 0.05


@KINDS
def test_a_second_derivative_is_refused(reentrant):
    model, _, x = made(FUNCTIONS["smooth"](), reentrant)
    J = jn.linearize(model, x)
    with pytest.raises(jn.UnsupportedModelError, match="through a checkpointed call that"):
        torch.autograd.grad(J.output.sum(), list(model.parameters()), create_graph=True)
    J = jn.linearize(model, x)
    with pytest.raises(jn.InputError, match="can be differentiated once"):
        torch.autograd.grad(J.jvp(x).square().sum(), list(model.parameters()), create_graph=True)


class Deep(nn.Module):
    """A transformer whose blocks are checkpointed one by one."""

    def __init__(self):
        super().__init__()
        self.inside = Blocks(64, 2, 6)

    def forward(self, x):
        h = self.inside.first(x)
        for block in self.inside.blocks:
            h = checkpoint(block, h, use_reentrant=False)
        return self.inside.head(self.inside.norm(h).mean(1))


def peak(loss_of):
    torch.manual_seed(0)
    model, x, labels = Deep(), torch.randn(4, 128, 64), torch.randint(10, (4,))
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    gc.collect()
    with Live() as live:
        for _ in range(2):
            loss_of(model, x, labels).backward()
    return live.peak


@pytest.mark.parametrize("penalty", [jn.SpectralPenalty(0.1), jn.FrobeniusPenalty(0.1)], ids=str)
def test_memory_of_a_step(penalty):
    def penalized(model, x, labels):
        J = jn.linearize(model, x)
        return F.cross_entropy(J.output, labels) + penalty(J)

    plain = peak(lambda model, x, labels: F.cross_entropy(model(x), labels))
    assert peak(penalized) <= 2.4 * plain
