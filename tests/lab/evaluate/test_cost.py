"""Errors of the estimates are compared with the SVD. Of times, only their presence is checked."""

import pytest
import torch
from torch import nn

import jacnorm as jn
from jacnorm.lab.evaluate import EvaluationError, estimation, step_times
from jacnorm.lab.evaluate.times import KINDS
from jacnorm.lab.figures.panels import alone, times
from jacnorm.lab.nets import Normalized
from jacnorm.lab.reproduce.measurement import as_frame


@pytest.fixture(scope="module")
def exact(trained, few):
    """J of the body at the normalized input, and its SVD."""
    J = jn.linearize(trained.body, trained.normalize(few.images)).dense().detach().double()
    return J, torch.linalg.svd(J, full_matrices=False)


def test_errors_of_power_iteration_and_lanczos(trained, few):
    r = estimation(trained, few, iterations=(1, 3, 10))
    assert 0.05 < r.random[0] < 0.5
    assert r.random[0] > r.random[1] > r.random[2]
    assert r.lanczos[1] < r.random[1]
    assert r.lanczos[2] < 1e-5  # ten outputs: the space is complete
    assert r.warm is None


def test_a_stored_vector_gives_its_own_error(trained, few, exact):
    _, (u, sigma, _) = exact
    top = u[:, :, 0].float()
    assert estimation(trained, few, stored=top, iterations=(1,)).warm[0] < 1e-5
    second = u[:, :, 1].float()
    expected = float((1 - sigma[:, 1] / sigma[:, 0]).mean())
    assert estimation(trained, few, stored=second, iterations=(1,)).warm[0] == pytest.approx(
        expected, rel=1e-3
    )


def test_the_bound_is_the_product_of_the_layers_norms(trained, few, exact):
    few = few.take(torch.arange(20))
    product = 1.0
    for layer in trained.body:
        if isinstance(layer, nn.Linear):
            product *= float(torch.linalg.svdvals(layer.weight.detach())[0])
    sigma = exact[1][1][:20, 0]
    expected = float((product / sigma - 1).mean())
    assert estimation(trained, few, iterations=(1,)).bound == pytest.approx(expected, rel=0.01)


def test_a_bound_for_a_smooth_network_and_none_where_calls_are_hidden(digits, few):
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    for shown, has_bound in ((body, True), (torch.jit.script(body), False)):
        bound = estimation(Normalized(shown, digits.mean, digits.std), few, iterations=(1,)).bound
        assert (bound is not None and bound > 0) == has_bound


def test_times(trained, few):
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    r = step_times(trained, few, batch_sizes=(8, 32), repeats=3)
    ours = {"spectral-bound", "frobenius", "spectral", "spectral-warm", "analytic", "analytic-svd"}
    assert set(r.seconds) == {"forward", "plain", *ours}
    assert all(len(r.seconds[kind]) == 2 and min(r.seconds[kind]) > 0 for kind in r.seconds)
    assert r.ratio["plain"] == (1.0, 1.0)
    for name, value in trained.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_every_line_of_the_times_looks_different_and_is_named_in_the_picture():
    ratio = {kind: [float(i)] * 2 for i, kind in enumerate(KINDS, 1)}
    record = {"config": {"seed": 0}, "cost": {"times": {"batch_sizes": [16, 32], "ratio": ratio}}}
    figure = alone(times, as_frame({"x": [record]}), height=4.4)
    (axes,) = figure.axes
    looks = [(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() != "None"]
    assert len(set(looks)) == len(looks) == len(KINDS)
    figure.draw_without_rendering()
    box, whole = axes.get_legend().get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert whole.y0 <= box.y0 < box.y1 <= whole.y1


def test_bad_options(trained, few):
    with pytest.raises(EvaluationError, match="there are 120 images"):
        step_times(trained, few, batch_sizes=(500,))
    with pytest.raises(EvaluationError, match="3 stored vectors for 120 images"):
        estimation(trained, few, stored=torch.zeros(3, 10))
