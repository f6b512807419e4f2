"""The architectures people use: engine, products, σ and the penalty's gradient, against dense Jacobians."""

import copy
from dataclasses import replace

import pytest
import torch
from oracles import assert_near, dense, gradient, pull, push, top_left
from torch.nn.attention import SDPBackend, sdpa_kernel
from zoo import ZOO
from zoo.critics import Diffusion
from zoo.images import DeepLab
from zoo.inception import GoogLeNet

import jacnorm as jn

pytestmark = pytest.mark.usefixtures("fast_paths")  # as with images of their real size
BOTH_MODES = [replace(case, training=training) for case in ZOO for training in (False, True)]


@pytest.mark.parametrize("case", BOTH_MODES, ids=str)
def test_products_norm_and_gradient(case):
    model, x = case.make()
    plain, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    D = dense(model, x)
    J = jn.linearize(model, x)
    assert J.engine == "layerwise", J.reason
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(J.output, plain(x.clone()), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-12, atol=1e-12)
    v, u = torch.randn_like(x), torch.randn_like(J.output)
    assert_near(J.jvp(v), push(D, v), 1e-9)
    assert_near(J.vjp(u), pull(D, u), 1e-9)
    sigma = torch.linalg.matrix_norm(D, 2)
    torch.testing.assert_close(jn.spectral_norm(J, tol=1e-10).sigma, sigma.detach(), rtol=1e-7, atol=1e-12)

    expected = gradient(sigma.mean(), model)
    model.load_state_dict(before)
    penalty = jn.SpectralPenalty(weight=1.0)
    penalty.u = top_left(D)
    value = penalty(jn.linearize(model, x), index=torch.arange(len(x)))  # known by now, as in training
    assert_near(gradient(value, model), expected, 1e-6)


@pytest.mark.parametrize("case", BOTH_MODES, ids=str)
def test_single_precision(case):
    """Other kernels serve float32: fused attention, oneDNN's recurrent nets."""
    model, x = case.make()
    v = torch.randn_like(x)
    expected = jn.linearize(copy.deepcopy(model), x).jvp(v).detach()
    J = jn.linearize(model.float(), x.float())
    close = {"rtol": 1e-2, "atol": 1e-3 * float(expected.abs().max())}
    torch.testing.assert_close(J.jvp(v.float()).double(), expected, **close)
    (jn.SpectralPenalty()(J) + J.output.square().mean()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("case", BOTH_MODES, ids=str)
def test_half_precision(case, half_pays):
    """Sweeps in bfloat16 point where those in float32 do."""
    model, x = case.make()
    model, x = model.float(), x.float()
    jn.linearize(copy.deepcopy(model), x)
    found = []
    for precision in (None, torch.bfloat16):
        own = copy.deepcopy(model)
        torch.manual_seed(0)
        J = jn.linearize(own, x, precision=precision)
        w, c = J.jvp(torch.ones_like(x)).detach(), J.vjp(torch.ones_like(J.output)).detach()
        assert w.dtype == c.dtype == torch.float32
        found.append((w.flatten(), c.flatten(), gradient(jn.FrobeniusPenalty(1.0)(J), own)))
    for single, low in zip(*found, strict=True):
        assert low.isfinite().all()
        assert torch.cosine_similarity(single.double(), low.double(), dim=0) > 0.99 or not single.any()


def test_a_frozen_transformer_is_measured_without_gradients():
    """There PyTorch would take a fast path that cannot be differentiated."""
    case = next(case for case in ZOO if case.name == "text transformer")
    model, x = case.make()
    expected = torch.linalg.matrix_norm(dense(model, x), 2).detach()
    model.requires_grad_(False)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(jn.spectral_norm(jn.linearize(model, x), tol=1e-9).sigma, expected)


# ---- Models that need a word from the user ----------------------------------------------------------


def test_an_auxiliary_head_in_training():
    model, x = GoogLeNet(aux_logits=True).double(), torch.randn(3, 3, 8, 8, dtype=torch.float64)
    model.dropout.p = 0.0
    with pytest.warns(UserWarning, match="GoogLeNet returns more than one tensor.*output='logits'"):
        J = jn.linearize(model, x)
    torch.testing.assert_close(J.dense(), dense(lambda x: model(x).logits, x))
    aux = jn.linearize(model, x, output=lambda out: out[1])
    torch.testing.assert_close(aux.dense(), dense(lambda x: model(x)[1], x))
    assert jn.linearize(model.eval(), x).engine == "layerwise"


def test_a_segmentation_net_that_returns_a_dict():
    model, x = DeepLab(returns_dict=True).double().eval(), torch.randn(2, 2, 7, 7, dtype=torch.float64)
    with pytest.warns(UserWarning, match="DeepLab returns more than one tensor.*output='out'"):
        J = jn.linearize(model, x)
    torch.testing.assert_close(J.dense(), dense(lambda x: model(x)["out"], x))


def test_several_arguments():
    model, x = Diffusion().double(), torch.randn(3, 1, 5, 5, dtype=torch.float64)
    with pytest.raises(jn.ModelError, match=r"missing 1 required.*'t'.*def f\(x\): return model\(x, t\)"):
        jn.linearize(model, x)
    t, y = torch.linspace(0, 1, 3).double(), torch.tensor([0, 2, 1])

    def f(x):
        return model(x, t, y=y)

    torch.testing.assert_close(jn.linearize(f, x).dense(), dense(f, x))
