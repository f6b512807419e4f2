"""Several inputs of one model, differentiated together."""

import oracles
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jacnorm as jn
from jacnorm.errors import InputError


class Flow(nn.Module):
    """Of images and times, as flow and consistency models have it; the times are one number per sample."""

    def __init__(self):
        super().__init__()
        self.first, self.time = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(1, 4)
        self.last = nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x, t, scale=1.0):
        h = F.silu(self.first(x) + self.time(t[:, None])[:, :, None, None])
        return scale * self.last(h)


@pytest.fixture
def made():
    torch.manual_seed(0)
    return Flow().double(), torch.randn(3, 2, 4, 4).double(), torch.rand(3).double()


def dense(net, x, t):
    """In all inputs together: the times are the last column."""
    both = torch.cat([x.flatten(1), t[:, None]], 1)
    return oracles.dense(lambda z: net(z[:, :-1].view_as(x), z[:, -1]), both)


def test_products_of_all_inputs_together(made):
    net, x, t = made
    J, expected = jn.linearize(net, (x, t)), dense(net, x, t)
    torch.testing.assert_close(J.output, net(x, t))
    torch.testing.assert_close(J.dense(), expected)
    v, w, u = torch.randn_like(x), torch.randn_like(t), torch.randn_like(x)
    row = torch.cat([v.flatten(1), w[:, None]], 1)
    torch.testing.assert_close(J.jvp((v, w)).flatten(1), torch.einsum("boi,bi->bo", expected, row))
    torch.testing.assert_close(
        J.jvp((v, None)).flatten(1), torch.einsum("boi,bi->bo", expected[..., :-1], v.flatten(1))
    )
    torch.testing.assert_close(J.jvp((None, w)).flatten(1), expected[..., -1] * w[:, None])
    pulled = torch.einsum("boi,bo->bi", expected, u.flatten(1))
    for_x, for_t = J.vjp(u)
    torch.testing.assert_close(for_x, pulled[:, :-1].view_as(x))
    torch.testing.assert_close(for_t, pulled[:, -1])


def test_norms_are_those_of_the_whole(made):
    net, x, t = made
    J, expected = jn.linearize(net, (x, t)), dense(net, x, t)
    found = jn.spectral_norm(J, tol=1e-8)
    torch.testing.assert_close(found.sigma, torch.linalg.matrix_norm(expected, 2))
    torch.testing.assert_close(jn.frobenius_norm(J), torch.linalg.matrix_norm(expected))
    for_x, for_t = J.split(found.v)
    torch.testing.assert_close(J.jvp((for_x, for_t)), found.sigma.view(-1, 1, 1, 1) * found.u.view_as(x))


@pytest.mark.parametrize("penalty", [jn.AnalyticPenalty(0.5), jn.FrobeniusPenalty(0.5, "all")], ids=str)
def test_the_gradient_of_a_penalty(made, penalty):
    net, x, t = made
    J = penalty.linearize(net, (x, t))
    (J.output.square().mean() + penalty(J)).backward()
    found = [p.grad.clone() for p in net.parameters()]
    A = dense(net, x, t)
    exact = isinstance(penalty, jn.AnalyticPenalty)
    norm = torch.linalg.matrix_norm(A, 2) if exact else A.square().sum((1, 2))
    expected = torch.autograd.grad(net(x, t).square().mean() + 0.5 * norm.mean(), list(net.parameters()))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_further_arguments_are_constants_and_parts_take_all_inputs(made):
    net, x, t = made
    J = jn.linearize(net, (x, t), 3.0)
    torch.testing.assert_close(J.dense(), 3 * dense(net, x, t))
    torch.testing.assert_close(J.subset(torch.tensor([2, 0])).dense(), 3 * dense(net, x, t)[[2, 0]])
    torch.testing.assert_close(J.weighted(torch.full((33,), 2.0).double()).dense(), 2 * J.dense())


def test_every_engine_serves(made):
    net, x, t = made
    J = jn.linearize(net, (x, t), engine="autograd")
    torch.testing.assert_close(J.dense(), dense(net, x, t))
    w = torch.randn_like(t)
    torch.testing.assert_close(J.jvp((None, w)), jn.linearize(net, (x, t)).jvp((None, w)))


def test_products_can_be_differentiated(made):
    net, x, t = made
    w = torch.randn_like(t)
    found = torch.autograd.grad(
        jn.linearize(net, (x, t)).jvp((None, w)).square().sum(), list(net.parameters())[:4]
    )
    column = dense(net, x, t)[..., -1] * w[:, None]
    expected = torch.autograd.grad(column.square().sum(), list(net.parameters())[:4])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_where_j_begins_later_the_inputs_may_be_anything():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(5, 3), nn.Linear(3, 2)

        def forward(self, tokens, shift):
            return self.out(self.embed(tokens).sum(1) + shift)

    net, tokens, shift = Two(), torch.randint(5, (4, 6)), torch.randn(4, 3)
    J = jn.linearize(net, (tokens, shift), at="embed")
    assert J.input_shape == (4, 6, 3)
    torch.testing.assert_close(J.dense()[:, :, :3], net.out.weight.expand(4, 2, 3))


@pytest.mark.parametrize(
    ("x", "match"),
    [
        ((torch.randn(3, 2, 4, 4), torch.rand(2)), r"batches of \[3, 2\] samples"),
        ((torch.randn(3, 2, 4, 4), torch.rand(3).double()), "same dtype and device"),
        ((torch.randn(3, 2, 4, 4), torch.arange(3)), r"x\[1\].*found dtype torch.int64"),
        ((torch.randn(3, 2, 4, 4), 0.5), r"x\[1\].*found float"),
        ((), "empty tuple"),
    ],
)
def test_inputs_that_do_not_go_together_are_refused(x, match):
    with pytest.raises(InputError, match=match):
        jn.linearize(Flow(), x)


@pytest.mark.parametrize(
    ("v", "match"),
    [
        (lambda x, t: x, "must be a tuple .*found Tensor"),
        (lambda x, t: (x,), "2 inputs: v must be a tuple .*found 1 of them"),
        (lambda x, t: (x, x), r"v\[1\] must have the shape of input 1, \(3,\)"),
        (lambda x, t: (x, 1.0), r"v\[1\] .*found float"),
    ],
)
def test_tangents_that_do_not_fit_are_refused(made, v, match):
    net, x, t = made
    with pytest.raises(InputError, match=match):
        jn.linearize(net, (x, t)).jvp(v(x, t))
