"""Several parts of one recorded run, and samples that depend on each other."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_near, gradient, mean_sigma
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import jacnorm as jn

F64 = torch.float64


class Skipping(nn.Module):
    """Two ways around each of its middle layers, by a sum, a product, a list, and attention."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))
        self.query, self.key, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(12, 4)

    def forward(self, x):
        a = self.first(x).tanh()
        b = F.silu(self.second(a)) * a + a
        c = self.third(b.relu()) - x
        q, k, v = (t.view(len(t), 1, 3, 2) for t in (self.query(b), self.key(c), a))
        d = F.scaled_dot_product_attention(q, k, v).flatten(1)
        return self.last(torch.cat([torch.hypot(d, a), torch.where(c > 0, c, b)], 1))


def part(model, x, at, to):
    """By hand: the derivative of one activation in something small that is added to another."""
    modules, found, z = dict(model.named_modules()), {}, None
    handles = []
    if to:
        handles.append(modules[to].register_forward_hook(lambda m, a, y: found.update(y=y)))
    if at:
        z = torch.zeros(3, modules[at].out_features, dtype=F64, requires_grad=True)
        handles.append(modules[at].register_forward_hook(lambda m, a, y: y + z))
    else:
        x = z = x.clone().requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        y = model(x)
    y = found.get("y", y)
    for handle in handles:
        handle.remove()
    rows = [torch.autograd.grad(total, z, create_graph=True, materialize_grads=True)[0] for total in y.sum(0)]
    return torch.stack(rows, 1)


PARTS = [
    (None, "first"),
    ("first", None),
    ("second", None),
    ("second", "third"),
    (None, "third"),
    ("first", "key"),
]


@pytest.mark.parametrize("ends", PARTS, ids=str)
def test_parts_of_one_run(ends):
    torch.manual_seed(0)
    model, x = Skipping().to(F64), torch.randn(3, 6, dtype=F64)
    J = jn.linearize(model, x, through=["first", "second", "third", "key"])
    K, D = J.between(*ends), part(model, x, *ends)
    torch.testing.assert_close(K.dense(), D)
    torch.testing.assert_close(jn.linearize(model, x, at=ends[0], to=ends[1]).dense(), D)
    value = jn.AnalyticPenalty(1.0)(K)
    torch.testing.assert_close(value, mean_sigma(D))
    assert_near(gradient(value, model), gradient(mean_sigma(D), model), 1e-6)
    whole = jn.AnalyticPenalty(1.0)(J)
    alone = jn.AnalyticPenalty(1.0)(jn.linearize(model, x))
    assert_near(gradient(whole, model), gradient(alone, model), 1e-8)


def test_one_run_for_all(monkeypatch):
    model, x = Skipping().to(F64), torch.randn(3, 6, dtype=F64)
    jn.linearize(model, x)
    runs = []
    model.register_forward_pre_hook(lambda *_: runs.append(1))
    J = jn.linearize(model, x, through=["first", "third"])
    for ends in ((None, "first"), ("first", "third"), ("third", None)):
        jn.FrobeniusPenalty()(J.between(*ends))
    assert len(runs) == 1


def test_parts_are_transformed_and_taken_of_a_part_of_the_batch():
    model, x = Skipping().to(F64), torch.randn(3, 6, dtype=F64)
    K = jn.linearize(model, x, through=["first", "third"]).between("first", "third").affine(2, -1)
    torch.testing.assert_close(K.subset(torch.tensor([2, 0])).dense(), K.dense()[[2, 0]])
    with pytest.raises(jn.InputError, match=r"take J\.between\(\) first"):
        K.between("first", None)


def test_the_nuclear_norm_is_bounded():
    """Scarvelis and Solomon: ½(‖G‖_F² + ‖H‖_F²) ≥ ‖G H‖_*, with equality at a balanced factorization."""
    torch.manual_seed(0)
    model, x = Skipping().to(F64), torch.randn(3, 6, dtype=F64)
    linear = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)).to(F64)
    J = jn.linearize(linear, x, through=["0"])
    exact = jn.SchattenPenalty(1.0)(J)
    penalty = jn.NuclearBoundPenalty(1.0, at="0")
    penalty.frobenius.projections = "all"
    value = penalty(J)
    assert value > exact
    G, H = linear[1].weight, linear[0].weight
    by_hand = (G.square().sum() + H.square().sum()) / 2
    torch.testing.assert_close(value, by_hand)
    assert_near(gradient(value, linear), gradient(by_hand, linear), 1e-8)
    U, S, V = torch.linalg.svd((G @ H).detach())
    with torch.no_grad():
        G.copy_(U * S.sqrt())
        H.copy_(S.sqrt()[:, None] * V)
    torch.testing.assert_close(penalty(jn.linearize(linear, x, through=["0"])), exact)
    with pytest.raises(jn.InputError, match=r"through=\['first'\]"):
        jn.NuclearBoundPenalty(at="first")(jn.linearize(model, x))


def test_bad_names():
    model, x = Skipping(), torch.randn(3, 6)
    with pytest.raises(jn.InputError, match=r"no submodule 'frist'. Did you mean 'first'"):
        jn.linearize(model, x, through=["frist"])
    with pytest.raises(jn.InputError, match="give a list of names"):
        jn.linearize(model, x, through="first")
    J = jn.linearize(model, x, through=["first", "third"])
    with pytest.raises(jn.InputError, match=r"knows no place 'second' .it has 'first', 'third'"):
        J.between("second", None)
    with pytest.raises(jn.InputError, match="The output of 'first' does not depend on the output of 'third'"):
        J.between("third", "first")
    with pytest.raises(jn.UnsupportedModelError, match="the whole model is one step: asked for"):
        jn.linearize(model, x, through=["first"], engine="autograd").between("first", None)


class MinibatchCritic(nn.Module):
    """With the standard deviation over the batch as a feature, as in progressive GANs."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(9, 1)

    def forward(self, x):
        h = F.leaky_relu(self.first(x), 0.2)
        spread = (h - h.mean(0)).square().mean(0).add(1e-8).sqrt().mean()
        return self.last(torch.cat([h, spread.expand(len(h), 1)], 1))


@pytest.mark.parametrize("engine", ["auto", "autograd"])
@pytest.mark.parametrize(
    ("h", "by_hand"),
    [("square", torch.square), (lambda s: (s - 1) ** 2, lambda s: (s - 1) ** 2)],
    ids=["R1", "WGAN-GP"],
)
def test_a_critic_whose_samples_depend_on_each_other(h, by_hand, engine):
    torch.manual_seed(0)
    critic, x = MinibatchCritic().to(F64), torch.randn(5, 6, dtype=F64)
    with pytest.raises(jn.CoupledSamplesError):
        jn.linearize(critic, x, engine=engine)
    for _ in range(3):  # what is known of it is known of it with coupled=True alone
        J = jn.linearize(critic, x, engine=engine, coupled=True)
        value = jn.GradientPenalty(0.5, None, h=h)(J)
        z = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(critic(z).sum(), z, create_graph=True)
        expected = 0.5 * by_hand(slope.norm(dim=1)).mean()
        torch.testing.assert_close(value, expected)
        assert_near(gradient(value, critic), gradient(expected, critic), 1e-6)
        with pytest.raises(jn.CoupledSamplesError):
            jn.linearize(critic, x, engine=engine)


def test_what_has_no_meaning_there_is_refused():
    critic, x = MinibatchCritic(), torch.randn(5, 6)
    J = jn.linearize(critic, x, coupled=True)
    for penalty in (
        jn.SpectralPenalty(),
        jn.FrobeniusPenalty(),
        jn.GradientPenalty(loss=None, reduction="none"),
    ):
        with pytest.raises(jn.InputError, match="coupled=True: samples depend on each other"):
            penalty(J)
    with pytest.raises(jn.InputError, match="there is no Jacobian per sample"):
        jn.spectral_norm(J)
    with pytest.raises(jn.InputError, match="there is no Jacobian per sample"):
        J.dense()
    whole = jn.linearize(lambda z: critic(z[0])[None], x[None])
    assert jn.spectral_norm(whole).sigma.shape == (1,)
