"""Models that return more than a tensor: which of it J is of, and all of it with the gradients it has."""

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from oracles import gradient
from torch import nn
from torch.testing import assert_close

import jacnorm as jn
from jacnorm import recording


class Named(NamedTuple):
    scores: torch.Tensor
    hidden: torch.Tensor


@dataclass
class Fields:
    scores: torch.Tensor
    hidden: torch.Tensor


SHAPES = {
    "dict": lambda scores, hidden: {"scores": scores, "hidden": hidden},
    "tuple": lambda scores, hidden: (scores, hidden),
    "named tuple": Named,
    "dataclass": Fields,
}


def first_of(result):
    if isinstance(result, dict):
        return result["scores"]
    return result[0] if isinstance(result, tuple) else result.scores


class Net(nn.Module):
    """Scores, what they are made of, and the loss if it gets labels, as Hugging Face's models do."""

    def __init__(self, pack):
        super().__init__()
        self.embed, self.first, self.last = nn.Embedding(9, 4), nn.Linear(4, 5), nn.Linear(5, 3)
        self.pack = pack

    def forward(self, x, labels=None):
        if not x.is_floating_point():
            x = self.embed(x).mean(1)
        hidden = torch.tanh(self.first(x))
        scores = self.last(hidden)
        if labels is not None:
            return {"loss": F.cross_entropy(scores, labels), "logits": scores}
        return self.pack(scores, hidden)

    def plain(self, x):
        return self.last(torch.tanh(self.first(x)))


@pytest.fixture
def x():
    return torch.randn(2, 4, dtype=torch.float64)


def net(pack=None):
    return Net(pack or SHAPES["dict"]).double()


@pytest.mark.parametrize("pack", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("output", ["scores", 0, -2, first_of])
def test_a_name_a_position_and_a_function(pack, output, x):
    model = net(pack)
    if pack is SHAPES["tuple"] and output == "scores":
        with pytest.raises(jn.InputError, match="0 of shape"):
            jn.linearize(model, x, output=output)
        return
    J, expected = jn.linearize(model, x, output=output), jn.linearize(model.plain, x)
    assert_close(J.dense(), expected.dense())
    assert_close(J.output, expected.output)
    assert type(J.result) is type(model(x))
    wanted = gradient(jn.AnalyticPenalty(1.0)(expected), model)
    assert_close(gradient(jn.AnalyticPenalty(1.0)(J), model), wanted)


def test_what_a_function_computes_is_part_of_the_network(x):
    model = net()
    J = jn.linearize(model, x, output=lambda out: out["scores"] ** 2)
    assert_close(J.dense(), jn.linearize(lambda x: model.plain(x) ** 2, x).dense())
    other = jn.linearize(model, x, output=lambda out: out["scores"] ** 3)
    assert_close(other.dense(), jn.linearize(lambda x: model.plain(x) ** 3, x).dense())


@pytest.mark.parametrize("at", [None, "first"])
@pytest.mark.parametrize("penalty", [jn.SpectralPenalty, jn.FrobeniusPenalty, jn.AnalyticPenalty])
def test_the_loss_that_a_model_computes_has_its_gradient_beside_that_of_a_penalty(penalty, at, x):
    model, labels = net(), torch.tensor([2, 0])
    J = jn.linearize(model, x, labels=labels, output="logits", at=at)
    found = gradient(J.result["loss"] + penalty(1.0)(J), model)
    value = penalty(1.0)(jn.linearize(model, x, output="scores", at=at))
    expected = gradient(F.cross_entropy(model.plain(x), labels) + value, model)
    assert_close(found, expected)


def test_logits_are_found_and_told_once(x, monkeypatch):
    monkeypatch.setattr(recording, "_told", set())
    model, labels = net(), torch.tensor([2, 0])
    says = "Net returns more than one tensor: J is the Jacobian of 'logits'"
    with pytest.warns(UserWarning, match=says) as found:
        J = jn.linearize(model, x, labels=labels)
    assert [one.filename for one in found] == [__file__]  # where a person can do something about it
    assert J.chosen == "logits"
    assert "output='logits'" in repr(J)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jn.linearize(model, x, labels=labels)
        assert jn.linearize(model, x, labels=labels, output="logits").chosen is None


@pytest.mark.parametrize("call", [jn.linearize, jn.local_lipschitz, jn.SpectralPenalty(0.1).linearize])
def test_the_warning_points_at_the_line_that_calls(call, x, monkeypatch):
    monkeypatch.setattr(recording, "_told", set())
    with pytest.warns(UserWarning, match="J is the Jacobian of 0") as found:
        call(net(lambda scores, hidden: (scores, None, hidden.sum())), x)
    assert [one.filename for one in found] == [__file__]


def test_the_only_tensor_with_a_row_for_each_sample_is_obvious(x, monkeypatch):
    one = net(lambda scores, hidden: (scores, None, hidden.sum()))
    monkeypatch.setattr(recording, "_told", {("Net", 0)})
    assert_close(jn.linearize(one, x).dense(), jn.linearize(one.plain, x).dense())


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (None, "Say which: output='scores'"),
        ("score", "did you mean output='scores'"),
        (7, r"there is 'scores' of shape \(2, 3\), 'hidden'"),
        (lambda out: out, "The model's output is a dict, not a tensor"),
    ],
)
def test_what_cannot_be_told(output, says, x):
    with pytest.raises(jn.InputError, match=says):
        jn.linearize(net(), x, output=output)


def test_the_advice_for_tokens_can_be_taken():
    model, tokens = net(), torch.randint(9, (2, 6))
    with pytest.raises(jn.InputError, match=r"at='embed'"):
        jn.linearize(model, tokens)
    J = jn.linearize(model, tokens, at="embed", output="scores")
    assert J.input_shape == (2, 6, 4)
    z = model.embed(tokens)
    assert_close(J.dense(), jn.linearize(lambda z: model.plain(z.mean(1)), z).dense())


def test_under_no_grad_nothing_holds_a_graph(x):
    with torch.no_grad():
        J = jn.linearize(net(), x, output=0)
    assert not J.result["hidden"].requires_grad
    assert not J.output.requires_grad


def test_a_step_that_pays_nothing_has_the_result_as_well(x):
    penalty, model = jn.SpectralPenalty(0.1, every=2), net()
    results = [penalty.linearize(model, x, output="scores") for _ in range(2)]
    assert [sorted(J.result) for J in results] == [["hidden", "scores"]] * 2
    assert_close(results[0].output, results[1].output)


def test_part_of_a_batch(x):
    model = net()
    J = jn.linearize(model, x, output="scores").subset(torch.tensor([1]))
    assert_close(J.dense(), jn.linearize(model.plain, x[1:]).dense())


@pytest.mark.parametrize("output", ["scores", "hidden"])
def test_inside_torch_compile(output, x):
    model = net()

    def value(x):
        J = jn.linearize(model, x, output=output)
        return J.output.square().mean() + jn.SpectralPenalty(0.1, start="output")(J)

    torch.compiler.reset()
    compiled = torch.compile(value, fullgraph=True, backend="eager")
    assert_close(compiled(x), value(x))
    assert_close(gradient(compiled(x), model), gradient(value(x), model))
