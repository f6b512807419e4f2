"""Warm starts, their storage, and what must never happen: NaN, or a disturbed random state."""

import copy
import io
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from cases import LENET, SMALL
from oracles import mean_sigma
from torch import nn

import jacnorm as jn
from jacnorm.lab.nets import MLP

PENALTIES = [
    jn.SpectralPenalty,
    jn.FrobeniusPenalty,
    jn.SpectralBoundPenalty,
    jn.WeightDecay,
    jn.AnalyticPenalty,
]


def exact(J):
    return mean_sigma(J.dense().detach())


def test_warm_start_converges_from_call_to_call():
    model, x = LENET.make()
    penalty, index = jn.SpectralPenalty(weight=1.0), torch.tensor([7, 2, 5])
    errors = []
    for _ in range(60):
        J = jn.linearize(model, x)
        value = penalty(J, index=index)
        value.backward()
        errors.append(float((1 - value / exact(J)).detach()))
    assert penalty.u.shape == (8, 10)
    assert errors[0] > 0.05
    assert errors[-1] < 1e-4
    assert all(b <= a + 1e-12 for a, b in pairwise(errors))


def by_backward(loss, model):
    loss.backward()


def by_grad(loss, model):
    torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def by_backward_of_parameters(loss, model):
    loss.backward(inputs=list(model.parameters()))


@pytest.mark.parametrize("differentiate", [by_backward, by_grad, by_backward_of_parameters])
@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
def test_it_converges_whoever_takes_the_gradient(engine, differentiate):
    """In autograd's engine J v comes with the gradient, but only by backward()."""
    model, x = LENET.make()
    penalty = jn.SpectralPenalty(weight=1.0)
    for _ in range(60):
        J = jn.linearize(model, x, engine=engine)
        value = penalty(J, index=torch.arange(len(x)))
        differentiate(value, model)
    assert value.item() == pytest.approx(exact(jn.linearize(model, x)).item(), rel=1e-3)


@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
def test_a_hinge_finds_what_its_first_guess_does_not_see(engine):
    """Below the threshold there is no gradient; the vectors must improve all the same."""
    model, x = LENET.make()
    J, index = jn.linearize(model, x, engine=engine), torch.arange(len(x))
    first, right = jn.SpectralPenalty(1.0)(J).item(), exact(J).item()
    sigma = torch.linalg.matrix_norm(J.dense().detach(), 2)
    threshold = (first + right) / 2
    penalty = jn.SpectralPenalty(1.0, h="hinge", threshold=threshold)
    for _ in range(60):
        value = penalty(J, index=index)
        value.backward(retain_graph=True)
    assert first < threshold < right
    assert value.item() == pytest.approx(torch.relu(sigma - threshold).mean().item(), rel=1e-3)


@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
def test_the_stored_vector_is_the_next_power_step(engine):
    model, x = SMALL.make()
    J, index = jn.linearize(model, x, engine=engine), torch.arange(len(x))
    penalty = jn.SpectralPenalty(weight=0.3, h="square")
    penalty(J, index=index).backward(retain_graph=True)
    before = penalty.u.clone()
    penalty(J, index=index).backward(retain_graph=True)
    A = J.dense().detach()
    step = torch.einsum("boi,bpi,bp->bo", A, A, before)
    torch.testing.assert_close(penalty.u, step / step.norm(dim=1, keepdim=True))


def test_a_sample_not_seen_yet_starts_from_its_output():
    model, x = LENET.make()
    J = jn.linearize(model, x)
    penalty = jn.SpectralPenalty(weight=1.0)
    unseen = penalty(J, index=torch.arange(len(x)))
    torch.testing.assert_close(unseen, jn.SpectralPenalty(weight=1.0)(J))


@pytest.mark.parametrize("kind", [jn.SpectralPenalty, jn.SpectralBoundPenalty])
@pytest.mark.parametrize("scale", [1e-15, 2.0**16, 3e38, float("inf"), float("nan")])
def test_a_scaled_loss_stores_the_same_vectors_or_none(kind, scale):
    """As under a GradScaler, whose first scale may well overflow: entries, or only their norm."""
    found = {}
    for factor in (1.0, scale):
        torch.manual_seed(0)
        model, x = MLP((4, 4)), torch.randn(3, 4)
        nn.init.constant_(model[1].weight, 1.0)
        penalty = kind(weight=1.0)
        value = penalty(jn.linearize(model, x), index=torch.arange(3))
        before = {name: vectors.clone() for name, vectors in penalty.named_buffers()}
        value.backward(torch.tensor(factor))
        found[factor] = dict(penalty.named_buffers())
    expected = found[1.0] if scale < 1e30 else before
    assert ("u" if kind is jn.SpectralPenalty else "v0") in expected
    torch.testing.assert_close(found[scale], expected)


def test_what_is_not_a_number_is_not_stored():
    """The sample begins again."""
    penalty = jn.SpectralPenalty(1.0)
    J = jn.linearize(lambda x: torch.sqrt(torch.relu(x)), torch.tensor([[0.0, 1.0, -1.0]]))
    assert penalty(J, index=torch.arange(1)).isnan()
    assert torch.equal(penalty.u, torch.zeros_like(penalty.u))


def test_a_bound_that_overflows_keeps_its_vectors():
    model, penalty = nn.Linear(4, 4), jn.SpectralBoundPenalty(1.0)
    nn.init.constant_(model.weight, 1e25)
    for _ in range(2):
        penalty(jn.linearize(model, torch.randn(3, 4))).backward()
        torch.testing.assert_close(penalty.v0.norm(), torch.ones(()))


def test_without_backward_nothing_is_lost():
    model, x = SMALL.make()
    penalty = jn.SpectralPenalty(iterations=2)
    J = jn.linearize(model, x)
    values = [penalty(J, index=torch.arange(len(x))).item() for _ in range(100)]
    assert all(b >= a - 1e-15 for a, b in pairwise(values))
    assert values[-1] == pytest.approx(0.01 * float(exact(J)), rel=1e-6)


def test_random_start_takes_the_iterations_asked_for():
    model, x = LENET.make()
    J = jn.linearize(model, x)
    one, many = (jn.SpectralPenalty(weight=1.0, iterations=n, start="random")(J) for n in (1, 100))
    assert 0.5 * exact(J) < one < 0.99 * exact(J)
    torch.testing.assert_close(many.detach(), exact(J), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", PENALTIES)
def test_state_survives_saving_and_loading(kind):
    model, x = SMALL.make()
    index = torch.arange(len(x))
    penalty, other = kind(weight=0.1), kind(weight=0.1)
    penalty(jn.linearize(model, x), index=index).backward()
    file = io.BytesIO()
    torch.save(penalty.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    J = jn.linearize(model, x)
    assert torch.equal(penalty(J, index=index), other(J, index=index))
    assert torch.equal(copy.deepcopy(penalty)(J, index=index), other(J, index=index))


@pytest.mark.parametrize("kind", PENALTIES)
def test_pickling_and_a_new_precision(kind):
    model, x = SMALL.make()
    penalty = pickle.loads(pickle.dumps(kind(weight=0.1)))
    for dtype in (torch.float64, torch.float32):
        J = jn.linearize(model.to(dtype), x.to(dtype))
        value = penalty(J, index=torch.arange(len(x), dtype=torch.int32))
        value.backward()
        assert value.dtype == dtype


def test_unused_state_loads_into_a_used_penalty():
    model, x = SMALL.make()
    used = jn.SpectralBoundPenalty()
    used(jn.linearize(model, x)).backward()
    used.load_state_dict(jn.SpectralBoundPenalty().state_dict())
    J = jn.linearize(model, x)
    assert torch.equal(used(J), jn.SpectralBoundPenalty()(J))


@pytest.mark.parametrize("kind", PENALTIES)
def test_torchs_random_state_is_left_alone(kind):
    model, x = SMALL.make()
    before = torch.get_rng_state()
    kind(weight=0.1)(jn.linearize(model, x), index=torch.arange(len(x)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("index", [None, torch.arange(3)])
@pytest.mark.parametrize("engine", ["layerwise", "autograd"])
def test_a_zero_jacobian_gives_zero_and_no_nan(kind, index, engine):
    model, x = MLP((5, 6, 4)), torch.randn(3, 5)
    nn.init.constant_(model[1].bias, -100.0)  # every unit is dead
    J = jn.linearize(model, x, engine=engine)
    value = kind(weight=1.0)(J, index=index)
    value.backward()
    for parameter in model.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()
    if kind in (jn.SpectralPenalty, jn.FrobeniusPenalty, jn.AnalyticPenalty):
        assert value == 0
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("kind", PENALTIES)
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_bad_weights(kind, weight):
    with pytest.raises(jn.InputError, match="weight="):
        kind(weight=weight)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jn.SpectralPenalty(iterations=0), "iterations=0"),
        (lambda: jn.SpectralPenalty(iterations=1.5), r"iterations=1\.5"),
        (lambda: jn.SpectralPenalty(h="cube"), "choose one of identity, square, hinge"),
        (lambda: jn.FrobeniusPenalty(projections=0), "projections=0"),
        (lambda: jn.SpectralBoundPenalty(iterations=-1), "iterations=-1"),
        (lambda: jn.SpectralBoundPenalty(convolution="fft"), "choose one of operator, kernel"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(jn.InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.arange(2), "each of the 3 samples"),
        (torch.arange(3.0), "whole numbers"),
        (torch.tensor([0, -1, 2]), "start at 0"),
        (torch.tensor([0, 1, 10**12]), "every position up to the largest"),
    ],
)
def test_bad_index(index, message):
    model, x = SMALL.make()
    with pytest.raises(jn.InputError, match=message):
        jn.SpectralPenalty()(jn.linearize(model, x), index=index)


@pytest.mark.parametrize("kind", PENALTIES)
def test_a_validation_step_before_the_first_training_step(kind):
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(5, 3)
    penalty = kind(weight=1.0)
    with torch.inference_mode():
        penalty(jn.linearize(model, x))
    penalty(jn.linearize(model, x)).backward()
    assert model[0].weight.grad.abs().max() > 0


def test_numbers_of_numpy():
    plain = {"weight": 0.5, "iterations": 2, "fraction": 0.5}
    numpys = {"weight": np.float32(0.5), "iterations": np.int64(2), "fraction": np.float32(0.5)}
    J = jn.linearize(MLP((4, 5, 3)), torch.randn(6, 4))
    assert torch.equal(jn.SpectralPenalty(**plain)(J), jn.SpectralPenalty(**numpys)(J))
    assert jn.SpectralPenalty(budget=np.float32(1.5)).pace.budget == 1.5


@pytest.mark.parametrize("kind", PENALTIES)
def test_what_is_not_a_linearization_is_named(kind):
    with pytest.raises(jn.InputError, match=r"takes J = jacnorm\.linearize\(model, x\), found Tensor"):
        kind(weight=0.1)(torch.randn(3, 4))
    with pytest.raises(jn.InputError, match=r"weight='0\.1'"):
        kind(weight="0.1")


def test_penalties_that_need_a_module_say_so():
    J = jn.linearize(lambda x: 2 * x, torch.randn(3, 4))
    with pytest.raises(jn.InputError, match="WeightDecay needs the parameters"):
        jn.WeightDecay()(J)
    with pytest.raises(jn.InputError, match="no linear or convolution layer"):
        jn.SpectralBoundPenalty()(J)
