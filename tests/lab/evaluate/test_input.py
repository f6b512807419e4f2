"""Every evaluation refuses input that it cannot use, with a reason."""

import json

import pytest
import torch
from torch import nn

from jacnorm import NonFiniteError
from jacnorm.lab.data import Split
from jacnorm.lab.evaluate import (
    EvaluationError,
    adversarial,
    boundary,
    calibration,
    estimation,
    judge,
    landscape,
    step_times,
    white_noise,
)
from jacnorm.lab.evaluate.common import prepare
from jacnorm.lab.sensitivity import sensitivities

EVERY = {
    "noise": white_noise,
    "pgd": lambda model, split: adversarial(model, split, "pgd", iterations=(1,)),
    "square": lambda model, split: adversarial(model, split, "square", iterations=(1,)),
    "judge": lambda model, split: judge(model, split, iterations=1, queries=1),
    "boundary": lambda model, split: boundary(model, split, directions=2),
    "calibration": calibration,
    "landscape": landscape,
    "estimation": lambda model, split: estimation(model, split, iterations=(1,)),
    "times": lambda model, split: step_times(model, split, batch_sizes=(4,), repeats=1),
}


OF_ANY_NUMBERS = ("calibration", "estimation", "times")  # tables are not in [0, 1]


@pytest.mark.parametrize("name", sorted(EVERY.keys() - set(OF_ANY_NUMBERS)))
def test_pixels_out_of_range(name, trained, few):
    with pytest.raises(EvaluationError, match=r"pixels must be in \[0, 1\], these are in \[0, 16\]"):
        EVERY[name](trained, Split(16 * few.images, few.labels))


@pytest.mark.parametrize("evaluate", EVERY.values(), ids=EVERY)
def test_bad_input(evaluate, trained, few):
    images, labels = few.images, few.labels
    with pytest.raises(EvaluationError, match=r"labels must be in 0 … 9.* these are in 1 … 10"):
        evaluate(trained, Split(images, labels + 1))
    with pytest.raises(EvaluationError, match="the selection is empty"):
        evaluate(trained, Split(images[:0], labels[:0]))


@pytest.mark.parametrize("evaluate", EVERY.values(), ids=EVERY)
def test_results_become_json_and_the_network_stays(evaluate, trained, few):
    torch.manual_seed(5)  # no code inside uses this seed by default
    state = torch.get_rng_state()
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    found = evaluate(trained, few).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)).keys() == found.keys()
    assert torch.equal(torch.get_rng_state(), state)
    assert not trained.training
    assert all(torch.equal(value, before[name]) for name, value in trained.state_dict().items())


def test_pixels_that_are_no_numbers(trained, few):
    images = few.images.clone()
    images[0, 0, 0, 0] = torch.nan
    with pytest.raises(EvaluationError, match="pixels must be in"):
        prepare(trained, Split(images, few.labels))


def test_an_output_that_is_no_row_of_logits(few):
    with pytest.raises(EvaluationError, match="one row of two or more logits"):
        prepare(nn.Identity(), few)


class Undefined(nn.Module):
    """Its output is NaN for the eighth image."""

    def forward(self, images):
        logits = images.flatten(1)[:, :10]
        return torch.where(torch.arange(len(images))[:, None] == 7, torch.nan, logits)


@pytest.mark.parametrize("evaluate", EVERY.values(), ids=EVERY)
def test_a_network_that_gives_nan(evaluate, few):
    told = "gives NaN or inf for 1 of the first 120 images, first for image 7"
    with pytest.raises(EvaluationError, match=told):
        evaluate(Undefined(), few)


def test_measuring_says_where_nan_comes_out(few, monkeypatch):
    monkeypatch.setattr("jacnorm.lab.sensitivity.CHUNK", 50)
    images = few.images.clone()
    images[73] = 2.0
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Threshold(-1e9, 0.0))
    with torch.no_grad():
        model[1].weight.fill_(1.0)
    broken = nn.Sequential(model, Root())
    with pytest.raises(NonFiniteError, match=r"First for sample 73: .* NaN or inf"):
        sensitivities(broken, images, quiet=True)


class Root(nn.Module):
    """Its output is NaN above a sum that images in [0, 1] do not reach."""

    def forward(self, x):
        return (65 - x).sqrt()
