"""The commands on tokens: J begins at their embedding."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import jacnorm as jn
from jacnorm.lab.cli import main
from jacnorm.lab.data import DataError, load
from jacnorm.lab.errors import UsageError
from jacnorm.lab.run_files import load_run, read_config
from jacnorm.lab.tokens import find_embedding

NETS = """
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self, words=9):
        super().__init__()
        self.words, self.places = nn.Embedding(words, 6), nn.Embedding(5, 6)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.GELU())
        self.head = nn.Linear(8, 2)

    def forward(self, tokens):
        h = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.body(h).mean(1))

def reader():
    return Reader()

def small():
    return Reader(4)

class Twice(Reader):
    def forward(self, tokens):
        return super().forward(tokens) + self.places(tokens).sum((1, 2))[:, None]

def twice():
    net = Twice()
    net.places = nn.Embedding(9, 6)
    return net
"""


def texts(n=40):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 9, (n, 5))
    return x, (x[:, 0] > 4).astype(int)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "token_nets", raising=False)
    (tmp_path / "token_nets.py").write_text(NETS)
    x, y = texts()
    np.savez("texts.npz", x=x, y=y)
    np.savez("others.npz", x=x - 1, y=y)
    np.savez("numbers.npz", x=x + 0.5, y=y)
    return tmp_path


TEXTS = ["--data", "texts.npz"]


def the_run(here):
    (folder,) = (here / "runs").iterdir()
    return folder


def run_of(folder, here):
    config = read_config(folder)
    data = load("texts.npz", **config.how_to_read)
    return load_run(folder, config, data), data


def sigma(model, tokens):
    """σ from the dense Jacobian at the embedding."""
    embedded = model.words(tokens)

    def rest(h):
        return model.head(model.body(h + model.places(torch.arange(tokens.shape[1]))).mean(0))

    rows = torch.func.vmap(torch.func.jacrev(rest))(embedded)
    return torch.linalg.matrix_norm(rows.flatten(2), 2)


def test_tokens_are_kept_as_they_are(here):
    data, numbers = load("texts.npz", tokens=True), load("texts.npz")
    x, _ = texts()
    assert data.train.images.dtype == torch.int64
    rows = {tuple(row) for split in (data.train, data.test) for row in split.images.tolist()}
    assert rows == {tuple(row) for row in x.tolist()}
    assert "5 tokens each, from 0 to 8" in data.told()
    assert "say --tokens" in numbers.told()
    assert data.fingerprint != numbers.fingerprint
    assert data.held_out(0.2, 0).train.images.dtype == torch.int64


@pytest.mark.parametrize("said", [["--tokens"], ["--at", "words"]])
def test_trained_measured_evaluated_and_examined(here, said, capsys):
    args = ["train", *TEXTS, *said, "--net", "token_nets:reader", "--epochs", "2", "--quiet"]
    assert main([*args, "--method", "spectral"]) == 0
    assert "(the tokens' embedding, first 8 samples)" in capsys.readouterr().out
    folder = the_run(here)
    model, data = run_of(folder, here)
    expected = sigma(model.body, data.test.images)
    assert main(["measure", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sigma"]["mean"] == pytest.approx(expected.mean().item(), rel=1e-3)
    assert found["units"] == "the embedding of each token"
    assert main(["measure", str(folder)]) == 0
    assert "with respect to the embedding of each token" in capsys.readouterr().out
    assert main(["evaluate", str(folder), "--calibration"]) == 0
    assert "mean σ, the tokens' embedding" in capsys.readouterr().out
    assert main(["doctor", str(folder)]) == 0
    assert "Reader" in capsys.readouterr().out


def test_the_penalty_lowers_sigma_at_the_embedding(here, capsys):
    found = {}
    for method in ("none", "spectral"):
        how = ["--method", method, "--epochs", "30", "--learning-rate", "0.1", "--weight", "0.3"]
        args = ["train", *TEXTS, "--tokens", "--net", "token_nets:reader", "--quiet", "--out", method]
        assert main([*args, *how]) == 0
        model, data = run_of(here / method, here)
        found[method] = sigma(model.body, data.train.images).mean().item()
    assert found["spectral"] < 0.7 * found["none"]


def test_a_step_has_the_gradient_of_the_exact_penalty(here):
    from jacnorm.lab.classification import start, train_step
    from jacnorm.lab.config import RunConfig

    data = load("texts.npz", tokens=True)
    config = RunConfig(data="texts.npz", tokens=True, net="token_nets:reader", method="analytic", weight=0.5)
    run, split = start(config, data, "cpu"), data.train
    run.optimizer.step = lambda: None
    train_step(run, split.images, split.labels, torch.arange(len(split)))
    body = run.model.body
    loss = nn.functional.cross_entropy(body(split.images), split.labels)
    wanted = torch.autograd.grad(loss + 0.5 * sigma(body, split.images).mean(), list(body.parameters()))
    for (name, p), expected in zip(body.named_parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_the_card_has_the_words(here, capsys):
    (here / "words.txt").write_text("\n".join(["<pad>", *"bcdefgh", "last"]) + "\n")
    args = ["card", "token_nets:reader", *TEXTS, "--at", "words", "--names", "words.txt"]
    assert main([*args, "--attacked", "4", "--out", "card.html"]) == 0
    html = (here / "card.html").read_text()
    assert "<code>words</code>" in html
    assert ">last</span>" in html


def test_doctor_finds_the_embedding(here, capsys, monkeypatch):
    monkeypatch.setattr("jacnorm.diagnosis.cost.SECONDS", 0)
    for how in (["--input", "5", "--tokens", "9"], [*TEXTS, "--tokens"]):
        assert main(["doctor", "token_nets:reader", *how]) == 0
        assert "linear" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ["train", "--data", "others.npz", "--tokens", "--net", "token_nets:reader"],
            "has -1; tokens are num",
        ),
        (
            ["train", "--data", "numbers.npz", "--tokens", "--net", "token_nets:reader"],
            "tokens are whole numb",
        ),
        (
            ["train", "--data", "digits", "--tokens"],
            "digits: it has images, and only your own data has tokens",
        ),
        (["train", *TEXTS, "--tokens", "--net", "mlp"], "the net does not take tokens of shape (5,), from"),
        (
            ["train", *TEXTS, "--at", "words", "--net", "token_nets:small"],
            "the embedding 'words' knows 0 to 3",
        ),
        (["train", *TEXTS, "--at", "word", "--net", "token_nets:reader"], "it has words, places"),
        (
            ["train", *TEXTS, "--tokens", "--net", "token_nets:twice"],
            "which embedding takes the tokens? Say at=",
        ),
        (
            ["train", *TEXTS, "--tokens", "--net", "token_nets:reader", "--method", "adversarial"],
            "has no pixels from 0 to 1 to attack",
        ),
        (
            ["train", *TEXTS, "--tokens", "--net", "token_nets:reader", "--augment"],
            "texts.npz has tokens; crops",
        ),
        (
            ["evaluate", "--net", "token_nets:reader", *TEXTS, "--tokens", "--noise"],
            "--noise is for images with pixels",
        ),
        (
            ["evaluate", "--net", "token_nets:reader", *TEXTS, "--tokens", "--judge"],
            "--judge is for images with pixels",
        ),
        (["measure", "--net", "token_nets:reader", *TEXTS, "--tokens", "--units", "pixels"], "has tokens"),
        (["measure", "--net", "token_nets:reader", *TEXTS, "--tokens", "--picture", "a.png"], "has tokens"),
        (["card", "token_nets:reader", *TEXTS, "--tokens", "--names", "no.txt"], "--names no.txt: cannot be"),
        (
            ["card", "token_nets:reader", *TEXTS, "--tokens", "--names", "token_nets.py"],
            "9 are needed, one for",
        ),
        (
            ["doctor", "token_nets:reader", "--input", "5", "--tokens"],
            "say how many different tokens there are",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(here, args, says, capsys):
    assert main(args) == 2
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err
    assert not (here / "runs").exists()


def test_a_net_that_fails_on_tokens():
    with pytest.raises(UsageError, match=r"the net does not take tokens of shape \(3,\), from 0 to 5"):
        find_embedding(nn.Embedding(2, 3), torch.arange(6).view(2, 3), None)
    with pytest.raises(DataError, match="only your own data has tokens"):
        load("digits", tokens=True)


@pytest.mark.parametrize("call", [jn.linearize, jn.local_lipschitz, jn.doctor])
def test_the_advice_can_be_taken_by_the_function_that_gives_it(call):
    net, tokens = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2)), torch.zeros(3, 3).long()
    with pytest.raises(jn.InputError, match=r"for tokens, let J begin where they are embedded: at='0'\.$"):
        call(net, tokens)
    call(net, tokens, at="0")
