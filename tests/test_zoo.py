"""The architectures people use: engine, products, σ and the penalty's gradient, against dense Jacobians."""

import copy
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from zoo import ZOO
from zoo.critics import Diffusion
from zoo.images import DeepLab
from zoo.inception import GoogLeNet

import jacnorm as jn

pytestmark = pytest.mark.usefixtures("fast_paths")  # as with images of their real size
BOTH_MODES = [replace(case, training=training) for case in ZOO for training in (False, True)]


def label(case):
    return f"{case.name}-{'train' if case.training else 'eval'}"


@contextmanager
def by_hand(statistics, *, collect):
    """Batch norm in training writes its statistics down, or takes those of an earlier run instead.

    And hardsigmoid is spelled out, since PyTorch's has no second derivative.
    """
    original = F.batch_norm

    def batch_norm(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        if not training:
            return original(x, mean, var, weight, bias, False, momentum, eps)
        over = [axis for axis in range(x.dim()) if axis != 1]
        if collect:
            statistics.append((x.mean(over, keepdim=True), x.var(over, correction=0, keepdim=True)))
        mean, var = statistics[-1] if collect else statistics.pop(0)
        y = (x - mean) / torch.sqrt(var + eps) * weight.view(mean.shape)
        return y if bias is None else y + bias.view(mean.shape)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "batch_norm", batch_norm)
        patch.setattr(F, "hardsigmoid", lambda x, inplace=False: F.relu6(x + 3) / 6)
        yield


def dense_by_rows(model, x):
    """(B, n_out, n_in), a row for each output; a batch's statistics depend on the weights but not on x."""
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    statistics = []
    with sdpa_kernel(SDPBackend.MATH):
        with by_hand(statistics, collect=True):
            model(x.clone())
        model.load_state_dict(buffers, strict=False)  # spectral_norm's vectors have moved on
        z = x.clone().requires_grad_()
        with by_hand(statistics, collect=False):
            output = model(z.clone()).reshape(len(x), -1)
    rows = [torch.autograd.grad(output[:, k].sum(), z, create_graph=True)[0] for k in range(output.shape[1])]
    return torch.stack(rows, 1).flatten(2)


@pytest.mark.parametrize("case", BOTH_MODES, ids=label)
def test_products_and_sigma(case):
    model, x = case.make()
    plain = copy.deepcopy(model)
    expected = dense_by_rows(copy.deepcopy(model), x).detach()
    J = jn.linearize(model, x)
    assert J.engine == case.engine, J.reason
    with sdpa_kernel(SDPBackend.MATH):
        torch.testing.assert_close(J.output, plain(x.clone()), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-12, atol=1e-12)
    close = {"rtol": 1e-7, "atol": 1e-9 * float(expected.abs().max())}
    v, u = torch.randn_like(x), torch.randn_like(J.output)
    pushed, pulled = (t.detach().reshape(len(x), -1) for t in (J.jvp(v), J.vjp(u)))
    torch.testing.assert_close(pushed, torch.einsum("boi,bi->bo", expected, v.flatten(1)), **close)
    torch.testing.assert_close(pulled, torch.einsum("boi,bo->bi", expected, u.reshape(len(x), -1)), **close)
    sigma = jn.spectral_norm(J, tol=1e-10).sigma
    torch.testing.assert_close(sigma, torch.linalg.matrix_norm(expected, 2), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("case", BOTH_MODES, ids=label)
def test_gradient_of_the_spectral_penalty(case):
    """From the second run on, when the model is known, as in training."""
    model, x = case.make()
    oracle, state = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    expected = dense_by_rows(oracle, x)
    torch.linalg.matrix_norm(expected, 2).mean().backward()

    jn.linearize(model, x, batch_norm="flowing")
    model.load_state_dict(state)
    J = jn.linearize(model, x, batch_norm="flowing")
    penalty = jn.SpectralPenalty(weight=1.0)
    penalty.u = torch.linalg.svd(expected.detach()).U[:, :, 0]
    penalty(J, index=torch.arange(len(x))).backward()
    scale = max(float(p.grad.norm()) for p in oracle.parameters() if p.grad is not None)
    for actual, wanted in zip(model.parameters(), oracle.parameters(), strict=True):
        got, want = (torch.zeros_like(p) if p.grad is None else p.grad for p in (actual, wanted))
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7 * scale)


@pytest.mark.parametrize("case", BOTH_MODES, ids=label)
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


def test_a_frozen_transformer_is_measured_without_gradients():
    """There PyTorch would take a fast path that cannot be differentiated."""
    case = next(case for case in ZOO if case.name == "text transformer")
    model, x = case.make()
    expected = torch.linalg.matrix_norm(dense_by_rows(model, x), 2)
    model.requires_grad_(False)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(jn.spectral_norm(jn.linearize(model, x), tol=1e-9).sigma, expected)


# ---- Models that need a word from the user ----------------------------------------------------------


def test_an_auxiliary_head_in_training():
    model, x = GoogLeNet(aux_logits=True).double(), torch.randn(3, 3, 8, 8, dtype=torch.float64)
    with pytest.raises(jn.InputError, match=r"returned GoogLeNetOutputs.*return model\(x\)\.logits"):
        jn.linearize(model, x)

    def f(x):
        return model(x).logits

    model.dropout.p = 0.0
    expected = dense_by_rows(lambda_module(f, model), x)
    torch.testing.assert_close(jn.linearize(f, x).dense(), expected)
    assert jn.linearize(model.eval(), x).engine == "layerwise"


def test_a_segmentation_net_that_returns_a_dict():
    model = DeepLab(returns_dict=True).eval()
    with pytest.raises(jn.InputError, match=r"returned OrderedDict.*return model\(x\)\['out'\]"):
        jn.linearize(model, torch.randn(2, 2, 7, 7))


def test_several_arguments():
    model, x = Diffusion().double(), torch.randn(3, 1, 5, 5, dtype=torch.float64)
    with pytest.raises(jn.ModelError, match=r"missing 1 required.*'t'.*def f\(x\): return model\(x, t\)"):
        jn.linearize(model, x)
    t, y = torch.linspace(0, 1, 3).double(), torch.tensor([0, 2, 1])

    def f(x):
        return model(x, t, y=y)

    torch.testing.assert_close(jn.linearize(f, x).dense(), dense_by_rows(lambda_module(f, model), x))


def lambda_module(function, model):
    """A module that calls the function, with the model's own buffers."""
    module = nn.Module()
    module.model, module.forward = model, function
    return module
