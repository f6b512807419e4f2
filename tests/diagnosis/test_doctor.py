"""What the doctor says, on models of which it is known."""

import copy
import functools
import inspect
import re
import threading
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from cases import NETS
from functions import Rounded, Swish
from torch import nn
from zoo import ZOO

import jacnorm as jn
from jacnorm.diagnosis.cost import step_cost
from jacnorm.diagnosis.examine import examine
from jacnorm.diagnosis.folding import folded
from jacnorm.lab.nets import LeNet, ResNet18
from jacnorm.pytorch.modules import unchanged


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch):
    monkeypatch.setattr("jacnorm.diagnosis.cost.SECONDS", 0)
    monkeypatch.setattr("jacnorm.diagnosis.half.why_not", lambda *_: "is not tried here")


def mlp(*between):
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 3))


@pytest.mark.parametrize("case", [*NETS, *(replace(case, training=True) for case in ZOO)], ids=str)
def test_the_calls_are_those_on_the_tape_and_say_what_goes_by_autograd(case):
    model, x = case.make()
    found = examine(model, x)
    assert found.served, found.problem
    assert found.engine == "layerwise"
    assert all((call.rule is None) == (call.reason is not None) for call in found.calls)
    named = {call.name for call in found.calls if call.rule is None}
    assert all(name in (found.reason or "") for name in named)
    assert bool(named) == (found.reason is not None)
    tape = [step.name for step in jn.linearize(model, x).tape.steps]
    tape = [name.removesuffix(" by autograd").removeprefix("get ").strip("_") for name in tape]
    names = iter(call.name for call in found.calls)
    assert all(step in names for step in dict.fromkeys(tape))  # each, in this order


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        h = self.fc(x)
        return torch.special.i0(h) + F.gelu(x)


def line_of(text, function):
    lines, start = inspect.getsourcelines(function)
    return f"test_doctor.py:{start + next(i for i, line in enumerate(lines) if text in line)}"


def test_calls_say_where_they_are_made():
    calls = examine(nn.Sequential(Block(), Block()), torch.randn(3, 4)).calls
    assert [(call.layer, call.name) for call in calls[:4]] == [
        *(("0.fc", "linear"), ("0", "special_i0"), ("0", "gelu"), ("0", "add")),
    ]
    assert calls[0].line.endswith(line_of("self.fc(x)", Block.forward))
    assert calls[1].line.endswith(line_of("special.i0", Block.forward))
    assert [call.rule for call in calls[:4]] == ["linear", None, "smooth", "linear"]
    assert calls[1].reason == "it has no rule"
    assert [tuple(call.shape) for call in calls[:2]] == [(3, 4), (3, 4)]


def test_the_text_groups_reasons():
    text = examine(nn.Sequential(Block(), Block()), torch.randn(3, 4)).verdict(width=200)
    assert "- special_i0: it has no rule (2 calls, the first: layer 0, " in text


def test_a_function_is_seen_through():
    net = mlp(nn.ReLU())

    def f(x):
        return {"out": net(x)}["out"]

    for model, name in ((f, "net.0"), (net.forward, "0"), (functools.partial(net), "0")):
        found = examine(model, torch.randn(3, 4))
        assert found.training is True
        assert found.calls[0].layer == name


# ---- Findings ---------------------------------------------------------------------------------------


def warnings_of(model, x):
    found = examine(model, x)
    assert found.served, found.problem
    return " ".join(found.warnings)


def test_nothing_to_say_about_a_plain_net():
    assert examine(LeNet().eval(), torch.randn(4, 1, 28, 28)).warnings == []


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.gain, self.unused = nn.Linear(4, 3), nn.Parameter(torch.ones(3)), nn.Linear(2, 2)

    def forward(self, x):
        y = self.fc(x)
        return y + self.gain * y.detach()


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.fc(x))


class Through(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function.apply(x)


def test_what_a_function_of_ones_own_does_inside_is_its_own_business():
    assert examine(mlp(Through(Rounded)), torch.randn(8, 4)).warnings == []


def dead():
    model = mlp(nn.ReLU())
    nn.init.constant_(model[0].bias[:4], -100.0)
    return model


IMAGE = (3, 8, 8)


@pytest.mark.parametrize(
    ("model", "shape", "words"),
    [
        (mlp(nn.BatchNorm1d(6)), (4,), "1 batch norm in training mode.*Measure σ in evaluation mode"),
        (mlp(nn.BatchNorm1d(6)).eval(), (4,), "This was evaluation mode"),
        (mlp(nn.Dropout()), (4,), "draws random numbers.*measure σ in evaluation mode"),
        (mlp(nn.Dropout()).eval(), (4,), "This was evaluation mode"),
        (Detached(), (4,), r"no part in the output: unused\.weight, unused\.bias\."),
        (Detached(), (4,), r"no gradient in these parameters, though the loss does: gain\."),
        (mlp(Through(Swish)), (4,), "Swish saves tensors without a gradient.*gradgradcheck"),
        (Detached(), (4,), r"detach ends the gradient \([^)]*test_doctor.py:\d+\)"),
        (Shared(), (4,), "used more than once: 1"),
        (dead(), (4,), r"67% of the ReLUs are zero for every sample \(layer 1\)"),
    ],
)
def test_findings(model, shape, words):
    found = warnings_of(model, torch.randn(32, *shape))
    assert re.search(words, found), found


@pytest.mark.parametrize(
    ("model", "silent_about"),
    [
        (mlp(nn.BatchNorm1d(6)).eval(), "training mode\\."),
        (mlp(nn.Dropout()).eval(), "random numbers"),
        (dead(), "ReLUs are zero"),  # of one sample, half of them are zero anyway
        (mlp(nn.ReLU()), "no gradient in these parameters"),  # biases have none, and that is right
    ],
)
def test_no_false_alarm(model, silent_about):
    batch = 4 if silent_about == "ReLUs are zero" else 64
    assert not re.search(silent_about, warnings_of(model, torch.randn(batch, 4)))


# ---- Manners ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_model_is_left_as_it_was(context):
    model = mlp(nn.BatchNorm1d(6), nn.Dropout())
    x = torch.randn(8, 4)
    model(x).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with context():
        found = jn.doctor(model, x)
    assert found.served
    assert "no part in the output" not in str(found)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert model.training


def test_what_a_function_calls_is_left_as_it_was():
    """Its modules are found when they are called, since nothing else names them."""
    held = {"net": mlp(nn.BatchNorm1d(6))}
    x, state = torch.randn(8, 4, requires_grad=True), copy.deepcopy(held["net"].state_dict())
    assert jn.doctor(lambda x: held["net"](x), x).served
    assert x.grad is None
    assert all(p.grad is None for p in held["net"].parameters())
    assert all(torch.equal(state[k], v) for k, v in held["net"].state_dict().items())


def test_other_threads_keep_their_gradients():
    net, x = mlp(nn.ReLU()), torch.randn(8, 4)
    expected = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    with unchanged({}, x.device):
        thread = threading.Thread(target=lambda: net(x).sum().backward())
        thread.start()
        thread.join()
    torch.testing.assert_close([p.grad for p in net.parameters()], list(expected))


def test_lazy_modules():
    assert examine(nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()), torch.randn(8, 4)).served


def test_cost(monkeypatch):
    model, x = mlp(nn.ReLU()), torch.randn(8, 4)
    calls = []

    class Slow(jn.SpectralPenalty):
        def forward(self, J, index=None):
            calls.append(index is not None)
            time.sleep(0.03 if index is None else 0.06)
            return super().forward(J, index)

    monkeypatch.setattr("jacnorm.diagnosis.cost.SpectralPenalty", Slow)
    cost = step_cost(model, x)
    assert calls[:6] == [False, True] * 3  # in turns
    assert 0 < cost.plain < 0.03 <= cost.penalty < cost.with_index
    assert cost.ratio == cost.penalty / cost.plain


WIDE = nn.Sequential(nn.Linear(80, 70), nn.Tanh(), nn.Dropout(0.5), nn.Linear(70, 3))


def test_what_half_precision_brings(monkeypatch):
    monkeypatch.setattr("jacnorm.diagnosis.half.why_not", lambda *_: None)
    monkeypatch.setattr("jacnorm.pytorch.half.half_pays", lambda *_: True)
    found = jn.doctor(WIDE, torch.randn(8, 80))
    assert 0.999 < found.cost.half.cosine < 1 - 1e-9  # the same masks, and other rounding
    assert found.cost.ratio_in_half == found.cost.half.seconds / found.cost.plain > 1
    said = f"a step takes {found.cost.ratio_in_half:.1f} times a plain one, in place of "
    assert f"{said}{found.cost.ratio_with_index:.1f}. Its gradient has a cosine of" in found.verdict(
        width=400
    )


@pytest.mark.parametrize(
    ("model", "dtype", "why"),
    [
        (WIDE, torch.float32, "is not tried here"),
        (WIDE, torch.float64, "is for models in float32: this one runs in float64"),
        (WIDE, torch.bfloat16, "changes nothing: the model runs in half precision"),
        (nn.Linear(80, 3), torch.float32, "is not tried here"),
        (nn.Sequential(nn.Linear(63, 64), nn.ReLU()), torch.float32, "changes nothing: no linear layer, .*"),
    ],
)
def test_why_half_precision_is_of_no_use(model, dtype, why):
    model = copy.deepcopy(model).to(dtype)
    found = jn.doctor(model, torch.randn(8, next(model.parameters()).shape[1], dtype=dtype))
    assert re.fullmatch(why, found.cost.half)
    assert f"Half     precision=torch.bfloat16 {found.cost.half}." in found.verdict(width=400)


def test_memory_is_that_of_the_tensors_that_live():
    """A chain of maps without gradients to keep: what a plain step holds is known."""
    width, batch = 512, 64
    model, x = nn.Linear(width, width, bias=False), torch.randn(batch, width)
    cost = step_cost(model, x)
    vector, matrix = 4 * batch * width, 4 * width * width
    # The copy of x, y, its square on the way, the gradient of y, and that of the weights.
    plain, penalty = cost.memory
    assert matrix + 2 * vector <= plain <= matrix + 5 * vector
    # And the sweeps' vectors; their gradient of the weights meets the loss's.
    assert plain < penalty <= 3 * matrix + 12 * vector
    assert step_cost(model, x).memory == cost.memory


class Failing:
    """TorchScript compiles in one of its first runs, and fails if it is watched then."""

    def __init__(self, before):
        raise RuntimeError("The following operation failed in the TorchScript interpreter.")


def test_what_cannot_be_watched_has_no_memory(monkeypatch):
    monkeypatch.setattr("jacnorm.diagnosis.cost.Live", Failing)
    found = jn.doctor(mlp(nn.ReLU()), torch.randn(8, 4))
    assert found.cost.memory is None
    assert "Memory   not known" in str(found)


class Layers(nn.Module):
    """Blocks of three calls, in a list, some unlike the others."""

    def __init__(self, *activations):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), a, nn.Linear(4, 4)) for a in activations)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def shown(model):
    lines = examine(model, torch.randn(3, 4)).table().splitlines()[1:]
    return [re.split(r"\s{2,}", line.strip())[:2] for line in lines]


def test_blocks_that_repeat_are_told_once():
    found = shown(Layers(nn.GELU(), nn.GELU(), nn.GELU()))
    head, first, *_, last = found
    assert head == ["layers.0–2", "3 × 3 calls"]
    assert first == ["0", "linear"]
    assert last == ["head", "linear"]
    assert len(found) == 1 + 3 + 1


def test_blocks_that_differ_are_told_each():
    found = [layer for layer, _ in shown(Layers(nn.GELU(), nn.GELU(), nn.ReLU(), nn.GELU()))]
    assert found == [
        "layers.0–1",
        "0",
        "1",
        "2",
        *(f"layers.{i}.{j}" for i in (2, 3) for j in range(3)),
        "head",
    ]


def test_blocks_in_blocks():
    def stage():
        return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(2)))

    found = shown(nn.Sequential(nn.Linear(4, 4), stage(), stage(), nn.Linear(4, 2)))
    assert found == [
        *(["0", "linear"], ["1–2", "2 × 4 calls"], ["0–1", "2 × 2 calls"], ["0", "linear"], ["1", "gelu"]),
        ["3", "linear"],
    ]


def test_the_time_of_folded_calls_is_that_of_all():
    found = examine(Layers(nn.GELU(), nn.GELU(), nn.GELU()), torch.randn(3, 4))
    lines = folded(found.calls)
    assert sum(line.seconds for line in lines if not line.head) == pytest.approx(
        sum(c.seconds for c in found.calls)
    )
    assert lines[0].seconds == pytest.approx(sum(c.seconds for c in found.calls[:-1]))


def test_what_matters_comes_first():
    text = str(jn.doctor(mlp(nn.Dropout()), torch.randn(8, 4)))
    heads = ["training mode: 8×4 → 8×3", "Cost ", "Memory ", "Engine ", "Beware ", "layer "]
    places = [text.index(head) for head in heads]
    assert places == sorted(places)


def test_plot():
    found = examine(Layers(nn.GELU(), nn.GELU()), torch.randn(3, 4))
    (axes,) = found.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "0 linear",
        "1 gelu",
        "2 linear",
        "head linear",
    ]
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(100)
    with pytest.raises(jn.InputError, match="no calls to show"):
        replace(found, calls=()).plot()


def test_nothing_to_train_costs_nothing():
    found = jn.doctor(mlp(nn.Tanh()).requires_grad_(False), torch.randn(8, 4))
    assert found.served
    assert found.cost is None


@pytest.mark.parametrize("width", [80, 100])
def test_the_text_fits_a_terminal(width):
    deep = nn.Sequential(nn.ModuleDict({"a_rather_long_name_for_a_block": ResNet18(width=0.02)}))
    deep.forward = lambda x: deep[0]["a_rather_long_name_for_a_block"](x)
    found = replace(examine(deep, torch.randn(2, 3, 16, 16)), warnings=["word " * 60] * 2)
    table, verdict = found.table(width), found.verdict(width)
    assert max(map(len, f"{table}\n{verdict}".splitlines())) <= width
    assert "for_a_block.10.body.3  conv2d" in table
    assert "2 × 7 calls" in table  # the two blocks of the first stage are alike
    assert verdict.count("- word") == 2
    assert repr(found) == str(found)


class Reader(nn.Module):
    """Of tokens, with its scores in a dict, as Hugging Face's are."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids):
        z = self.embed(ids)
        return {"logits": self.head(torch.tanh(z).sum(1)), "hidden": z}


def test_tokens_and_an_output_by_its_name():
    ids = torch.randint(9, (6, 5))
    with pytest.raises(jn.InputError, match="at='embed'"):
        jn.doctor(Reader(), ids)
    found = jn.doctor(Reader(), ids, at="embed")
    assert found.text().startswith("Reader, training mode: 6×5 → 6×3 ('logits'), from the output of 'embed'")
    assert [call.name for call in found.calls] == ["tanh", "sum", "linear"]
    assert found.cost is not None
    hidden = jn.doctor(Reader(), ids, at="embed", output=lambda out: out["hidden"].exp())
    assert [call.name for call in hidden.calls] == ["tanh", "sum", "linear", "exp"]
    assert hidden.output_shape == (6, 5, 4)
