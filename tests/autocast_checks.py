"""What autocast must not change. Run by test_autocast.py; the oracle is the same network in float32."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import jacnorm as jn

BATCH = 32
INDEX = torch.arange(BATCH)


def convolutional():
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def batch_normed():
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(0.5), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(128, 32), nn.BatchNorm1d(32), nn.LeakyReLU(0.5), nn.Linear(32, 10)),
    )


def smooth():
    return nn.Sequential(
        *(nn.Flatten(2), nn.Unflatten(2, (4, 16)), nn.Flatten(1, 2)),
        *(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), nn.Flatten(), nn.Linear(64, 10)),
    )


class Inside(nn.Module):
    """Autocasts by itself and gives float32 back, as accelerate makes models do."""

    def __init__(self):
        super().__init__()
        self.body = convolutional()

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not hasattr(self, "plain")):
            return self.body(x).float()


NETS = [convolutional, batch_normed, smooth]


@pytest.fixture
def images():
    return torch.randn(BATCH, 1, 8, 8), torch.arange(BATCH) % 10


def autocast(dtype=torch.bfloat16, enabled=True):
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([g.flatten() for g in gradients])


def assert_near(a, b, cosine=0.99):
    assert torch.isfinite(a).all()
    assert F.cosine_similarity(a, b, dim=0) > cosine
    assert a.norm() / b.norm() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("index", [None, INDEX], ids=["random", "warm"])
@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("net", NETS)
def test_penalty_and_gradient_are_those_of_float32(net, where, index, dtype, images):
    model, (x, _) = net(), images
    found = {}
    for half in (False, True):
        penalty = jn.SpectralPenalty(weight=1.0)
        with autocast(dtype, half):
            J = jn.linearize(model, x)
            if where == "inside":
                value = penalty(J, index=index)
        if where == "outside":
            value = penalty(J, index=index)
        assert (J.engine, J.reason) == ("layerwise", None)
        assert value.dtype == J.jvp(x).dtype == torch.float32
        found[half] = value.detach(), gradient(model, value), penalty.u
    assert J.output.dtype == dtype
    torch.testing.assert_close(found[True][0], found[False][0], rtol=0.02, atol=0)
    assert_near(found[True][1], found[False][1])
    assert found[True][2].dtype == torch.float32
    if index is not None:
        torch.testing.assert_close(found[True][2], found[False][2], rtol=0, atol=0.1)


@pytest.mark.parametrize("kind", [jn.FrobeniusPenalty, jn.SpectralBoundPenalty, jn.AnalyticPenalty])
@pytest.mark.parametrize("net", NETS)
def test_every_penalty(kind, net, images):
    model, (x, _) = net(), images
    found = {}
    for half in (False, True):
        with autocast(enabled=half):
            found[half] = gradient(model, kind(weight=1.0)(jn.linearize(model, x)))
    assert_near(found[True], found[False])


@pytest.mark.parametrize("net", [convolutional, batch_normed])
@pytest.mark.parametrize("batch_norm", ["fixed", "flowing"])
def test_both_engines_agree(net, batch_norm, images):
    model, (x, _) = net(), images
    found = []
    for engine in ("layerwise", "autograd"):
        with autocast():
            J = jn.linearize(model, x, engine=engine, batch_norm=batch_norm)
            found.append(gradient(model, jn.AnalyticPenalty(weight=1.0)(J)))
    assert_near(*found, cosine=0.999)


def test_output_and_loss_gradient_are_untouched(images):
    model, (x, y) = batch_normed(), images
    for _ in range(2):  # examined, then known
        with autocast():
            expected = gradient(model, F.cross_entropy(model(x), y))
            J = jn.linearize(model, x)
            assert torch.equal(J.output, model(x))
            torch.testing.assert_close(gradient(model, F.cross_entropy(J.output, y)), expected)


def test_a_model_that_autocasts_by_itself(images):
    model, (x, _) = Inside(), images
    J = jn.linearize(model, x)
    assert J.engine == "layerwise", J.reason
    half = gradient(model, jn.SpectralPenalty(weight=1.0)(J))
    model.plain = True
    assert_near(half, gradient(model, jn.SpectralPenalty(weight=1.0)(jn.linearize(model, x))))


@pytest.mark.parametrize(
    "measure", [jn.spectral_norm, jn.singular_values, jn.frobenius_norm, jn.product_bound]
)
def test_measuring_does_not_depend_on_where_it_happens(measure, images):
    # Without kinks, whose side depends on the last digit.
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(72, 10))
    x, _ = images
    expected = measure(jn.linearize(model, x))
    with torch.no_grad(), autocast():
        J = jn.linearize(model, x)
        inside = measure(J)
    outside = measure(J)
    inside, outside, expected = (getattr(r, "sigma", r) for r in (inside, outside, expected))
    assert torch.equal(inside, outside)
    assert inside.dtype == torch.float32
    torch.testing.assert_close(inside, expected, rtol=0.02, atol=1e-3)


def trained(images, scale, steps=3):
    """The recipe: scale, step, update. Without a scale, plain steps under the same autocast."""
    torch.manual_seed(0)
    model, (x, y) = convolutional(), images
    before = copy.deepcopy(model.state_dict())
    penalty, bound = jn.SpectralPenalty(weight=0.1), jn.SpectralBoundPenalty(weight=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale or 1.0, backoff_factor=2.0**-20, enabled=scale is not None
    )
    for _ in range(steps):
        with autocast(torch.float16):
            J = jn.linearize(model, x)
            loss = F.cross_entropy(J.output, y) + penalty(J, index=INDEX) + bound(J)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return before, model.state_dict(), penalty.u, bound.v0


def test_gradient_scaling_changes_nothing(images):
    _, expected, u, v = trained(images, None)
    before, scaled, scaled_u, scaled_v = trained(images, 2.0**10)
    assert all(not torch.equal(before[name], scaled[name]) for name in before)
    torch.testing.assert_close(scaled, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(scaled_u, u, rtol=0, atol=1e-2)
    torch.testing.assert_close(scaled_v, v, rtol=0, atol=1e-3)


def test_an_overflow_leaves_weights_and_stored_vectors_alone(images):
    before, after, u, v = trained(images, 2.0**120, steps=1)
    torch.testing.assert_close(after, before, rtol=0, atol=0)  # the scaler has skipped the step
    for vectors in (u.flatten(1), v.flatten(1)):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
    *_, later, _ = trained(images, 2.0**120, steps=10)  # the scale falls until it fits, and the vectors go on
    torch.testing.assert_close(later.norm(dim=1), torch.ones(BATCH))
    assert not torch.allclose(later, u)
