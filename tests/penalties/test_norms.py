"""Every penalty on a norm: its value, and its gradient against that of the dense formula."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_near, dense, gradient
from torch import nn

import jacnorm as jn

F64 = torch.float64
A = torch.randn(2, 6, 6, dtype=F64, generator=torch.Generator(torch.get_default_device()).manual_seed(3))
WEIGHTS = torch.tensor([0.3, 1.0, 0.0, 2.0], dtype=F64)  # of samples, where each has a value of its own


def network(activation):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 9), activation, nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 6, bias=False)
    ).to(F64)


NETWORKS = {
    "piecewise linear": (lambda: network(nn.ReLU()), "auto"),
    "smooth": (lambda: network(nn.Softplus()), "auto"),
    "one step": (lambda: network(nn.Softplus()), "autograd"),
}


@pytest.fixture(params=NETWORKS)
def setting(request):
    build, engine = NETWORKS[request.param]
    net = build()
    return net, torch.randn(4, 6, dtype=F64), engine


def singular(D):
    return torch.linalg.svdvals(D)


def eigenvalue(D):
    return torch.linalg.eigvals(D).abs().amax(1)


def trace(D):
    return D.diagonal(dim1=1, dim2=2).sum(1)


# The penalty (its keywords given), and the norm of each sample by hand from the dense J.
NORMS = {
    "nuclear": (lambda **k: jn.SchattenPenalty(1.0, **k), lambda D: singular(D).sum(1)),
    "two largest": (lambda **k: jn.SchattenPenalty(1.0, k=2, **k), lambda D: singular(D)[:, :2].sum(1)),
    "Schatten 3": (
        lambda **k: jn.SchattenPenalty(1.0, 3, **k),
        lambda D: (singular(D) ** 3).sum(1) ** (1 / 3),
    ),
    "Schatten inf": (
        lambda **k: jn.SchattenPenalty(1.0, float("inf"), **k),
        lambda D: torch.linalg.matrix_norm(D, 2),
    ),
    "Frobenius": (lambda **k: jn.SchattenPenalty(1.0, 2, **k), torch.linalg.matrix_norm),
    "Frobenius squared": (
        lambda **k: jn.FrobeniusPenalty(1.0, "all", **k),
        lambda D: D.square().sum((1, 2)),
    ),
    "analytic": (lambda **k: jn.AnalyticPenalty(1.0, **k), lambda D: torch.linalg.matrix_norm(D, 2)),
    "spectral": (
        lambda **k: jn.SpectralPenalty(1.0, 500, **k),
        lambda D: torch.linalg.matrix_norm(D, 2),
    ),
    "induced 1": (lambda **k: jn.InducedPenalty(1.0, 1, **k), lambda D: torch.linalg.matrix_norm(D, 1)),
    "induced inf": (
        lambda **k: jn.InducedPenalty(1.0, "inf", **k),
        lambda D: torch.linalg.matrix_norm(D, float("inf")),
    ),
    "trace": (lambda **k: jn.TracePenalty(1.0, "all", **k), trace),
    "spectral radius": (lambda **k: jn.SpectralRadiusPenalty(1.0, **k), eigenvalue),
}
CURVES = {
    "identity": ("identity", lambda s: s),
    "square": ("square", torch.square),
    "hinge": ("hinge", lambda s: torch.relu(s - 0.4)),
    "two-sided": (lambda s: (s - 1) ** 2, lambda s: (s - 1) ** 2),
    "log": (lambda s: torch.log1p(s.square()), lambda s: torch.log1p(s.square())),
}
REDUCTIONS = {"mean": torch.mean, "sum": torch.sum, "max": torch.max, "none": lambda values: values}


def compare(net, value, expected):
    torch.testing.assert_close(value, expected)
    if value.dim() == 1:
        value, expected = (value * WEIGHTS).sum(), (expected * WEIGHTS).sum()
    assert expected.requires_grad
    assert_near(gradient(value, net), gradient(expected, net), 1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("norm", NORMS)
def test_norms(norm, reduction, setting):
    net, x, engine = setting
    make, by_hand = NORMS[norm]
    value = make(reduction=reduction)(jn.linearize(net, x, engine=engine))
    compare(net, value, REDUCTIONS[reduction](by_hand(dense(net, x))))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("norm", ["nuclear", "Frobenius squared", "spectral", "trace"])
def test_curves(norm, curve, reduction):
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    make, by_hand = NORMS[norm]
    h, f = CURVES[curve]
    value = make(reduction=reduction, h=h, threshold=0.4)(jn.linearize(net, x))
    compare(net, value, REDUCTIONS[reduction](f(by_hand(dense(net, x)))))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_gradients_of_the_loss(p, reduction, setting):
    net, x, engine = setting
    labels = torch.tensor([0, 2, 5, 1])
    value = jn.GradientPenalty(1.0, p=p, reduction=reduction)(
        jn.linearize(net, x, engine=engine), labels=labels
    )
    z = x.clone().requires_grad_()
    loss = F.cross_entropy(net(z), labels, reduction="sum")
    (slope,) = torch.autograd.grad(loss, z, create_graph=True)
    compare(net, value, REDUCTIONS[reduction](slope.norm(p=p, dim=1)))


def test_a_loss_of_the_users_own():
    net, x, targets = network(nn.Tanh()), torch.randn(4, 6, dtype=F64), torch.randn(4, 6, dtype=F64)
    penalty = jn.GradientPenalty(1.0, lambda f, y: (f - y).square().sum(1), h="square")
    value = penalty(jn.linearize(net, x), labels=targets)
    z = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad((net(z) - targets).square().sum(), z, create_graph=True)
    compare(net, value, slope.square().sum(1).mean())


def radii(net, x, labels, p, candidates):
    """By hand: a sample on the wrong side has radius 0."""
    D, f, found = dense(net, x), net(x), []
    for i, y in enumerate(labels.tolist()):
        others = f[i].detach().clone()
        others[y] = -float("inf")
        nearest = others.topk(candidates).indices.tolist()
        found.append(min((f[i, y] - f[i, j]) / (D[i, y] - D[i, j]).norm(p=p) for j in nearest))
    return torch.relu(torch.stack(found))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("candidates", [1, 5])
@pytest.mark.parametrize(("norm", "p"), [("inf", 1), (2, 2)])
def test_margins(norm, p, candidates, reduction, setting):
    net, x, engine = setting
    labels = net(x).argmax(1)
    labels[1] = (labels[1] + 1) % 6  # on the wrong side
    r = radii(net, x, labels, p, candidates)
    assert r[1] == 0
    radius = float(r.detach().max()) * 0.9  # and one that is far enough
    penalty = jn.MarginPenalty(1.0, radius, candidates=candidates, norm=norm, reduction=reduction)
    value = penalty(jn.linearize(net, x, engine=engine), labels=labels)
    compare(net, value, REDUCTIONS[reduction](torch.relu(radius - r)))


def test_a_margin_can_be_bent_otherwise():
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    labels = net(x).argmax(1)
    value = jn.MarginPenalty(1.0, candidates=5, h=lambda r: torch.exp(-r))(
        jn.linearize(net, x), labels=labels
    )
    compare(net, value, torch.exp(-radii(net, x, labels, 2, 5)).mean())


def test_margins_do_not_grow_with_the_scores():
    """The penalty of a network and of the same with larger scores are the same."""
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    labels = net(x).argmax(1)
    before = jn.MarginPenalty(1.0)(jn.linearize(net, x), labels=labels)
    with torch.no_grad():
        net[-1].weight *= 10
    torch.testing.assert_close(jn.MarginPenalty(1.0)(jn.linearize(net, x), labels=labels), before)


def test_training_with_margins_enlarges_radii():
    torch.manual_seed(0)
    net, x = network(nn.ReLU()), torch.randn(64, 6, dtype=F64)
    labels = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    medians = []
    for weight in (0.0, 1.0):
        penalty = jn.MarginPenalty(weight, radius=2.0)
        for _ in range(100):
            J = jn.linearize(net, x)
            optimizer.zero_grad()
            (F.cross_entropy(J.output, labels) + penalty(J, labels=labels)).backward()
            optimizer.step()
        medians.append(float(radii(net, x, labels, 2, 5).detach().median()))
    assert medians[1] > 1.2 * medians[0]


def test_hutchinsons_trace_is_right_on_average():
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    penalty, exact = jn.TracePenalty(1.0, probes=3), trace(dense(net, x)).mean()
    values, slopes = [], []
    for _ in range(1000):
        value = penalty(jn.linearize(net, x))
        values.append(value.detach())
        slopes.append(gradient(value, net))
    torch.testing.assert_close(torch.stack(values).mean(), exact.detach(), rtol=0.05, atol=0.01)
    expected = gradient(exact, net)
    assert (torch.stack(slopes).mean(0) - expected).norm() < 0.06 * expected.norm()


def test_one_projection_bent_by_h():
    """Of an estimate, too, the gradient is that of its value."""
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    penalty = jn.FrobeniusPenalty(1.0, 2, h=torch.sqrt, seed=7)
    value = penalty(jn.linearize(net, x))
    again = jn.FrobeniusPenalty(1.0, 2, seed=7)
    us = [again.random(torch.Size((4, 6)), x) for _ in range(2)]
    pulled = [torch.einsum("boi,bo->bi", dense(net, x), u / u.norm(dim=1, keepdim=True)) for u in us]
    compare(net, value, (6 / 2 * sum(c.square().sum(1) for c in pulled)).sqrt().mean())


MAPS = {
    "J - A": (lambda J: J.minus(A[0]), lambda D: D - A[0]),
    "J - A of each": (lambda J: J.minus(A.repeat(2, 1, 1)), lambda D: D - A.repeat(2, 1, 1)),
    "J - A by functions": (lambda J: J.minus((lambda v: v @ A[0].T, lambda u: u @ A[0])), lambda D: D - A[0]),
    "J - J^T": (lambda J: J.antisymmetric(), lambda D: D - D.mT),
    "twice J - J^T": (
        lambda J: J.antisymmetric().minus(A[0]).antisymmetric(),
        lambda D: 2 * (D - D.mT) - A[0] + A[0].T,
    ),
    "C J": (lambda J: J.project(A[0, :3]), lambda D: A[0, :3] @ D),
    "C J of each": (
        lambda J: J.project(A[:, :3].repeat(2, 1, 1)),
        lambda D: A[:, :3].repeat(2, 1, 1) @ D,
    ),
    "C J by functions": (
        lambda J: J.project((lambda w: w[:, 1:].unflatten(1, (5, 1)), lambda u: F.pad(u[:, :, 0], (1, 0)))),
        lambda D: D[:, 1:],
    ),
    "margins": (
        lambda J: J.margins(torch.tensor([0, 5, 2, 2])),
        lambda D: torch.stack(
            [d[y] - torch.cat([d[:y], d[y + 1 :]]) for d, y in zip(D, (0, 5, 2, 2), strict=True)]
        ),
    ),
    "all together": (
        lambda J: J.affine(2, -1).minus(A[0]).antisymmetric().project(A[0, :3]).weighted(A[0, 0]),
        lambda D: A[0, :3] @ (2 * D - A[0] - (2 * D - A[0]).mT) * A[0, 0],
    ),
}


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("norm", ["nuclear", "Frobenius squared", "analytic", "spectral"])
@pytest.mark.parametrize("name", MAPS)
def test_maps_made_of_j(name, norm, reduction, setting):
    net, x, engine = setting
    make, by_hand = NORMS[norm]
    ours, expected = MAPS[name]
    K = ours(jn.linearize(net, x, engine=engine))
    D = expected(dense(net, x))
    torch.testing.assert_close(K.dense(), D)
    compare(net, make(reduction=reduction)(K), REDUCTIONS[reduction](by_hand(D)))


def test_a_teachers_jacobian():
    student, teacher, x = network(nn.Tanh()), network(nn.ReLU()), torch.randn(4, 6, dtype=F64)
    with torch.no_grad():
        teacher[0].weight.mul_(1.3)
    for reduction in ("mean", "none"):
        K = jn.linearize(student, x).minus(jn.linearize(teacher, x))
        value = jn.FrobeniusPenalty(1.0, "all", reduction=reduction)(K)
        D = (dense(student, x) - dense(teacher, x).detach()).square().sum((1, 2))
        compare(student, value, REDUCTIONS[reduction](D))
        assert not gradient(value.sum(), teacher).any()


def test_maps_of_a_part_of_the_batch():
    """`fraction=` takes the rows of an operator that belong to its samples."""
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    several = A.repeat(2, 1, 1) * torch.arange(1, 5)[:, None, None]
    J, at = jn.linearize(net, x), torch.tensor([3, 1])
    K = (
        J.minus(several)
        .project(several)
        .margins(torch.tensor([0, 5, 2, 1]))
        .minus(J.margins(torch.zeros(4).long()))
    )
    torch.testing.assert_close(K.subset(at).dense(), K.dense()[at])
    penalty = jn.MarginPenalty(1.0, fraction=0.5)
    assert penalty(J, labels=net(x).argmax(1)).isfinite()


class Dead(nn.Module):
    """Zero for the first sample, whatever the input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=F64)
        self.register_buffer("alive", torch.tensor([[0.0], [1.0]], dtype=F64))

    def forward(self, x):
        return self.layer(x) * self.alive


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("h", ["identity", lambda s: s.abs().sqrt()])  # which is steep at zero
@pytest.mark.parametrize("norm", NORMS)
def test_a_jacobian_of_zeros_has_no_gradient(norm, h, reduction):
    net, x = Dead(), torch.randn(2, 3, dtype=F64)
    make = partial(NORMS[norm][0], h=h)
    value = make(reduction=reduction)(jn.linearize(net, x))
    assert value.isfinite().all()
    assert gradient(value.sum(), net).isfinite().all()
    values = make(reduction="none")(jn.linearize(net, x))
    assert values[0] == 0
    assert not gradient(values[0], net).any()


def test_gradients_and_margins_of_a_jacobian_of_zeros():
    net, x, labels = Dead(), torch.randn(2, 3, dtype=F64), torch.tensor([0, 1])
    for penalty in (
        jn.GradientPenalty(1.0),
        jn.MarginPenalty(1.0),
        jn.GradientPenalty(1.0, h=torch.sqrt),
        jn.GradientPenalty(1.0, h=torch.sqrt, reduction="none"),
    ):
        value = penalty(jn.linearize(net, x), labels=labels).sum()
        assert value.isfinite()
        assert gradient(value, net).isfinite().all()


def test_weight_zero_does_nothing():
    """No products, no vectors, no draws; of the right shape, and backward() works."""
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    for make in (jn.SpectralPenalty, jn.FrobeniusPenalty, jn.SchattenPenalty, jn.WeightDecay):
        penalty = make(0.0)
        value = penalty(jn.linearize(net, x))
        value.backward()
        assert value == 0
        assert int(penalty._draws) == 0
    assert jn.FrobeniusPenalty(0.0, reduction="none")(jn.linearize(net, x)).shape == (4,)
    penalty = jn.SpectralPenalty(0.0)
    assert repr(penalty.linearize(net, x)) == "Unrecorded((4, 6))"  # the model just ran
    penalty.weight = 1.0
    assert penalty(penalty.linearize(net, x)) > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    labels = net(x).argmax(1)
    for penalty in (jn.SchattenPenalty(1e-6, h="square"), jn.GradientPenalty(1e-6), jn.MarginPenalty(1e-6)):
        given = {"labels": labels} if penalty.needs_labels else {}
        exact = gradient(penalty(jn.linearize(net.to(F64), x), **given), net)
        half = penalty(jn.linearize(net.to(dtype), x.to(dtype)), **given)
        found = gradient(half.double() * 1e6, net).double() / 1e6  # as a scaler does
        assert torch.cosine_similarity(found, exact.double(), 0) > 0.99
        assert 0.9 < found.norm() / exact.norm() < 1.1


class Unkind:
    """Functions that are no h."""

    total = staticmethod(lambda s: s.sum())
    number = staticmethod(lambda s: float(s.detach().sum()))
    deaf = staticmethod(lambda s: s.detach() ** 2)
    of_five = staticmethod(lambda s: s - torch.ones(5))


def test_bad_input():
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    J = jn.linearize(net, x)
    with pytest.raises(jn.InputError, match=r"one number for each norm: for a vector of 3 it returned \(\)"):
        jn.SpectralPenalty(h=Unkind.total)
    with pytest.raises(jn.InputError, match=r"it returned float"):
        jn.FrobeniusPenalty(h=Unkind.number)
    with pytest.raises(jn.InputError, match=r"h has no gradient"):
        jn.SchattenPenalty(h=Unkind.deaf)
    with pytest.raises(jn.InputError, match=r"h failed on a vector of 3 norms \(RuntimeError: The size of"):
        jn.SpectralPenalty(h=Unkind.of_five)
    with pytest.raises(jn.InputError, match=r"loss='ce': give a function"):
        jn.GradientPenalty(1.0, "ce")
    with pytest.raises(jn.InputError, match=r"The loss does not depend on the output"):
        jn.GradientPenalty(1.0, lambda f, y: f.argmax(1).double())(J, labels=torch.zeros(4))
    for maps in (None, [[1.0]], "C"):
        with pytest.raises(
            jn.InputError, match=rf"C must be a tensor or a pair of functions.*{type(maps).__name__}"
        ):
            J.project(maps)
        with pytest.raises(jn.InputError, match=r"D must be a tensor or a pair of functions"):
            J.weighted(maps)
    with pytest.raises(jn.InputError, match=r"A must be a tensor or a pair of functions.*found 1 of them"):
        J.minus((lambda v: v,))
    with pytest.raises(jn.InputError, match=r"h='cube': choose one of identity, square, hinge"):
        jn.SpectralPenalty(h="cube")
    with pytest.raises(jn.InputError, match=r"reduction='median'"):
        jn.SchattenPenalty(reduction="median")
    with pytest.raises(jn.InputError, match=r"only a mean can be estimated"):
        jn.SpectralPenalty(reduction="max", fraction=0.5)
    with pytest.raises(jn.InputError, match=r"p=0\.5"):
        jn.SchattenPenalty(p=0.5)
    with pytest.raises(jn.InputError, match=r"choose 1 or 'inf'"):
        jn.InducedPenalty(p=2)
    with pytest.raises(jn.InputError, match=r"norm=1: choose 2 or 'inf'"):
        jn.MarginPenalty(norm=1)
    with pytest.raises(jn.InputError, match=r"C has shape \(3, 5\).*\(m, 6\)"):
        J.project(torch.ones(3, 5))
    with pytest.raises(jn.InputError, match=r"C has shape \(2, 3, 6\).*\(4, m, 6\)"):
        J.project(torch.ones(2, 3, 6))
    with pytest.raises(jn.InputError, match=r"C has shape .* dtype torch\.int64"):
        J.project(torch.ones(3, 6).long())
    with pytest.raises(jn.InputError, match=r"must map back to \(4, 6\)"):
        J.project((lambda w: w[:, :2], lambda u: u))
    with pytest.raises(jn.InputError, match=r"the first axis must stay the batch"):
        J.project((lambda w: w.sum(0, keepdim=True), lambda u: u))
    with pytest.raises(jn.InputError, match=r"A has 3 rows; J has 6"):
        J.minus(torch.ones(3, 6))
    with pytest.raises(jn.InputError, match=r"needs the same shapes"):
        J.minus(jn.linearize(nn.Linear(6, 2, dtype=F64), x))
    narrow = jn.linearize(nn.Linear(6, 2, dtype=F64), x)
    with pytest.raises(jn.InputError, match=r"J − Jᵀ needs an output with the input's shape"):
        narrow.antisymmetric()
    with pytest.raises(jn.InputError, match=r"The trace needs an output with the input's shape"):
        jn.TracePenalty()(narrow)
    with pytest.raises(jn.InputError, match=r"The spectral radius needs"):
        jn.SpectralRadiusPenalty()(narrow)
    with pytest.raises(jn.InputError, match=r"leave out to= and project"):
        jn.GradientPenalty()(J.project(torch.ones(3, 6)), labels=torch.zeros(4).long())
    with pytest.raises(jn.InputError, match=r"one number for each of the 4 samples, found \(\)"):
        jn.GradientPenalty(1.0, F.cross_entropy)(J, labels=torch.zeros(4).long())


def test_labels_are_looked_at():
    J = jn.linearize(network(nn.Tanh()), torch.randn(4, 6, dtype=F64))
    with pytest.raises(jn.InputError, match=r"MarginPenalty needs the labels"):
        jn.MarginPenalty()(J)
    with pytest.raises(jn.InputError, match=r"labels has shape \(3,\)"):
        jn.MarginPenalty()(J, labels=torch.zeros(3).long())
    with pytest.raises(jn.InputError, match=r"whole numbers"):
        jn.MarginPenalty()(J, labels=torch.zeros(4))
    with pytest.raises(jn.InputError, match=r"labels goes from 0 to 6; the model has 6 classes"):
        jn.MarginPenalty()(J, labels=torch.tensor([0, 1, 2, 6]))


def test_a_jacobian_too_large_to_hold(monkeypatch):
    """Said with its size, before any product is taken."""
    net = nn.Conv2d(3, 3, 3, padding=1)
    J = jn.linearize(net, torch.randn(2, 3, 128, 128))
    monkeypatch.setattr(type(J), "vjp", lambda *_: pytest.fail("a product was taken"))
    said = r"2 matrices of 49152 × 49152: 19,327,352,832 bytes \(18.0 GiB\)"
    for penalty in (jn.SchattenPenalty(), jn.InducedPenalty(), jn.AnalyticPenalty()):
        with pytest.raises(jn.InputError, match=said):
            penalty(J)


def test_pace_goes_on_as_for_all_penalties():
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    penalty = jn.SchattenPenalty(1.0, every=2, reduction="none")
    first, second = penalty(jn.linearize(net, x)), penalty(jn.linearize(net, x))
    assert second.shape == first.shape == (4,)
    assert not second.any()
    torch.testing.assert_close(first, 2 * jn.SchattenPenalty(1.0, reduction="none")(jn.linearize(net, x)))


def test_values_of_samples_cannot_be_differentiated_twice():
    net, x = network(nn.ReLU()), torch.randn(4, 6, dtype=F64)
    values = jn.AnalyticPenalty(1.0, reduction="none")(jn.linearize(net, x))
    with pytest.raises(jn.InputError, match=r"cannot be differentiated again"):
        torch.autograd.grad(values.sum(), net[0].weight, create_graph=True)


def test_a_norm_of_ones_own():
    """What CONTRIBUTING shows: the norm of the first row, by one pair."""

    class FirstRow(jn.NormPenalty):
        def forward(self, J, index=None):
            u = torch.zeros(J.output_shape, dtype=J.dtype)
            u[:, 0] = 1
            with torch.no_grad():
                c = J.vjp(u)
                length = c.norm(dim=1)
            return self.carried(J, length, [(u, c / length[:, None])])

    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    value = FirstRow(1.0, h="square")(jn.linearize(net, x))
    compare(net, value, dense(net, x)[:, 0].square().sum(1).mean())


def test_the_h_of_a_saved_penalty_is_that_of_the_new_one():
    """Checkpoints hold vectors and places in streams, as they always have."""
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    old = jn.SpectralPenalty(1.0)
    old(jn.linearize(net, x), index=torch.arange(4))
    assert set(old.state_dict()) == {"u", "_extra_state", "recent.outputs", "recent.u"}
    new = jn.SpectralPenalty(1.0, h=torch.square, reduction="sum")
    new.load_state_dict(old.state_dict())
    torch.testing.assert_close(new.u, old.u)
    assert "h=square, reduction='sum'" in repr(new)


def test_random_numbers_differ_from_call_to_call():
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    penalty = jn.TracePenalty(1.0)
    values = {float(penalty(jn.linearize(net, x)).detach()) for _ in range(3)}
    assert len(values) == 3


def test_norms_of_each_sample_are_kept():
    """Of the last step that paid, by every penalty on a norm."""
    net, x = network(nn.Tanh()), torch.randn(4, 6, dtype=F64)
    labels = net(x).argmax(1)
    makers = {
        "gradient": lambda **k: jn.GradientPenalty(1.0, **k),
        "margin": lambda **k: jn.MarginPenalty(1.0, **k),
        **{name: make for name, (make, _) in NORMS.items()},
    }
    for make in makers.values():
        penalty = make(every=2)
        given = {"labels": labels} if penalty.needs_labels else {}
        expected = make(reduction="none", **({} if penalty.h != "identity" else {"h": "identity"}))
        expected(jn.linearize(net, x), **given)
        for _ in range(2):
            penalty(penalty.linearize(net, x), **given)
        torch.testing.assert_close(penalty.norms, expected.norms)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_bound_of_the_nuclear_norm(reduction):
    net, x = network(nn.Softplus()), torch.randn(4, 6, dtype=F64)
    make = partial(jn.NuclearBoundPenalty, 1.0, at="2", reduction=reduction)
    first, rest = net[:3], net[3:]
    H, G = dense(first, x), dense(rest, first(x))
    bound = (G.square().sum((1, 2)) + H.square().sum((1, 2))) / 2
    compare(net, make(projections="all")(jn.linearize(net, x, through=["2"])), REDUCTIONS[reduction](bound))
    assert (bound >= singular(dense(net, x)).sum(1)).all()
    lazy = make(projections="all", every=2)
    values = [lazy(lazy.linearize(net, x, through=["2"])) for _ in range(2)]
    torch.testing.assert_close(values[0], 2 * REDUCTIONS[reduction](bound))
    assert values[1].shape == values[0].shape
    assert not values[1].any()
