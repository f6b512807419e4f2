"""The numbers of a card are compared with known ones."""

import math
from functools import partial

import pytest
import torch
from torch import nn

import jacnorm as jn
from jacnorm import recording
from jacnorm.lab.card.embedding import swapped, swapped_at_random
from jacnorm.lab.card.measuring import chosen, measure
from jacnorm.lab.card.numbers import number
from jacnorm.lab.card.subject import Rescaled, evaluating, in_box, make_subject
from jacnorm.lab.cli import main
from jacnorm.lab.tokens import find_embedding


@pytest.fixture(scope="module")
def measured(images, table, text):
    found = {}
    for kind, of in (("images", images), ("table", table), ("text", text)):
        with evaluating(of.model):
            subject = make_subject(of.model, of.x, of.y, **of.extra)
            found[kind] = measure(subject, attacked=8, epsilon=None)
    return found


def sigma_by_svd(f, x):
    rows = torch.func.vmap(torch.func.jacrev(lambda one: f(one[None])[0]))(x)
    return torch.linalg.matrix_norm(rows.flatten(2), 2)


def test_sigma_of_images_is_that_of_the_jacobian_in_pixels(measured, images):
    expected = sigma_by_svd(images.model.eval(), images.x)
    torch.testing.assert_close(measured["images"].sensitivity.sigma, expected, rtol=1e-4, atol=1e-5)


def test_sigma_of_a_table_counts_in_standard_deviations(measured, table):
    """The units of the columns do not matter, nor where the model scales them."""
    x = torch.tensor(table.x)
    std = x.std(0, correction=0)
    model = nn.Sequential(*table.model).double().eval()
    expected = sigma_by_svd(lambda z: model(z * std), x / std)
    table.model.float()
    torch.testing.assert_close(measured["table"].sensitivity.sigma.double(), expected, rtol=1e-3, atol=1e-4)


def test_sigma_of_texts_is_that_at_the_embedding(measured, text):
    assert measured["text"].subject.at == "words"  # not the embedding of positions
    model = text.model.eval()
    embedded = model.words(text.x).detach()
    pad = text.x == 0

    def rest(h, pad):
        h = h + model.places(torch.arange(6))
        return model.head(model.layers(h, src_key_padding_mask=pad)[:, 0])

    for i in range(5):
        rows = torch.autograd.functional.jacobian(
            lambda e, i=i: rest(e[None], pad[i : i + 1])[0], embedded[i]
        )
        expected = torch.linalg.matrix_norm(rows.flatten(1), 2)
        torch.testing.assert_close(measured["text"].sensitivity.sigma[i], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["images", "table", "text"])
def test_margin_reach_and_bound(measured, kind):
    m = measured[kind]
    logits, y = m.subject.logits, m.subject.y
    assert torch.equal(m.right, logits.argmax(1) == y)
    i = int(m.right.nonzero()[0])
    others = torch.cat([logits[i, : y[i]], logits[i, y[i] + 1 :]])
    margin = float(logits[i, y[i]] - others.max())
    assert float(m.margin[i]) == pytest.approx(margin, rel=1e-5)
    assert float(m.reach[i]) == pytest.approx(
        margin / (math.sqrt(2) * float(m.sensitivity.sigma[i])), rel=1e-5
    )
    assert (m.reach[~m.right] == 0).all()
    assert m.bound.value >= float(m.sensitivity.sigma.max()) * (1 - 1e-3)


def test_no_shorter_change_alters_the_class_of_a_linear_model():
    """`reach` is never above the exact distance to the boundary, which is known for a linear model."""
    model = made_linear()
    x = torch.rand(40, 1, 3, 3)
    y = model(x).argmax(1)
    with evaluating(model):
        m = measure(make_subject(model, x, y), attacked=1, epsilon=1e-3)
    W = model[1].weight
    rows = W[y]
    gaps = model(x).gather(1, y[:, None]) - model(x)
    exact = (gaps / (rows[:, None] - W).norm(dim=2)).scatter(1, y[:, None], torch.inf).amin(1)
    assert (m.reach <= exact * (1 + 1e-5)).all()
    assert (m.reach > 0).all()


def made_linear():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(9, 4))


def test_the_bound_of_a_scaled_table_knows_no_units(measured, table):
    """The scales before the first layer count as part of it. The bound is ‖W₁‖‖W₂‖ in standard deviations."""
    scaled, first, _, last = table.model
    std = torch.tensor(table.x).std(0, correction=0).float()
    norms = [
        torch.linalg.matrix_norm(W.detach(), 2) for W in (first.weight * (std / scaled.std), last.weight)
    ]
    assert measured["table"].bound.value == pytest.approx(float(norms[0] * norms[1]), rel=2e-3)


@pytest.mark.parametrize("kind", ["images", "table"])
def test_the_box_of_noise_and_attacks(measured, kind):
    s = measured[kind].subject
    model, p, unit = in_box(s)
    assert p.dim() == 4
    assert ((p >= 0) & (p <= 1)).all()
    with torch.no_grad():
        torch.testing.assert_close(model(p), s.logits, rtol=1e-3, atol=1e-3)
        if kind == "table":  # a step of 0.5/unit there is half a standard deviation here
            p[:, 0, 0, 4] += 0.5 / unit
            z = s.x.clone()
            z[:, 4] += 0.5
            torch.testing.assert_close(model(p), s.model(z), rtol=1e-3, atol=1e-3)


def test_images_that_are_no_pixels():
    """Normalized images: the box is the range of each channel."""
    x = torch.randn(30, 2, 3, 3) * torch.tensor([1.0, 5.0]).view(2, 1, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(18, 3)).eval()
    boxed, p, unit = in_box(make_subject(model, x, torch.arange(30) % 3))
    assert unit == 1
    assert torch.equal(p.amin((0, 2, 3)), torch.zeros(2))
    torch.testing.assert_close(p.amax((0, 2, 3)), torch.ones(2))
    with torch.no_grad():
        torch.testing.assert_close(boxed(p), model(x), rtol=1e-4, atol=1e-4)


def test_a_constant_column_is_no_division_by_zero(table):
    x = torch.tensor(table.x)
    x[:, 3] = 2.0
    subject = make_subject(table.model.eval(), x, table.y)
    assert torch.isfinite(subject.x).all()
    assert isinstance(subject.model, Rescaled)


# ---- Texts ------------------------------------------------------------------------------------------


def test_one_changed_token_against_all_of_them(text, monkeypatch):
    """With enough tries both attacks equal the exhaustive search."""
    monkeypatch.setattr("jacnorm.lab.card.embedding.TRIES", 10**6)
    model, x, y = text.model.eval(), text.x[:10], text.y[:10]
    expected = []
    for tokens, label in zip(x, y, strict=True):
        places = [i for i, token in enumerate(tokens) if token != 0]
        changed = [
            tokens.scatter(0, torch.tensor(i), w) for i in places for w in range(1, 10) if w != tokens[i]
        ]
        expected.append(bool((model(torch.stack(changed)).argmax(1) != label).any()))
    assert swapped(model, "words", x, y).tolist() == expected
    generator = torch.Generator().manual_seed(0)
    assert swapped_at_random(model, "words", x, y, generator).tolist() == expected


def test_few_tries_find_no_more_than_many(text, monkeypatch):
    model, x, y = text.model.eval(), text.x, text.y
    found = []
    for tries in (1, 5, 1000):
        monkeypatch.setattr("jacnorm.lab.card.embedding.TRIES", tries)
        found.append(swapped(model, "words", x, y))
    assert not (found[0] & ~found[1]).any()
    assert not (found[1] & ~found[2]).any()
    assert found[2].any()


def test_which_embedding(text):
    assert find_embedding(text.model, text.x[:2], None) == "words"
    with pytest.raises(jn.JacnormError, match=r"at='head' names no nn.Embedding .* words, places"):
        find_embedding(text.model, text.x[:2], "head")
    bags = nn.Sequential(nn.EmbeddingBag(10, 4), nn.Linear(4, 2))
    with pytest.raises(jn.JacnormError, match=r"which embedding takes the tokens.* the model has none"):
        find_embedding(bags, text.x[:2], None)


def test_an_alarm_is_on_the_first_screen(images, tmp_path):
    """Rounding hides the gradients. Square still succeeds, and the card raises the alarm."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = images.model

        def forward(self, x):
            x = (x * 8).round() / 8
            return self.body(x)

    jn.card(Steps(), images.x, images.y, tmp_path / "card.html", attacked=12, epsilon=0.2)
    html = (tmp_path / "card.html").read_text()
    assert "Alarm:" in html[: html.index("What σ means")]
    assert "gradients may be masked" in html


# ---- The page ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["images", "table", "text"])
def test_the_first_screen_has_the_numbers(cards, measured, kind):
    html, m = cards[kind], measured[kind]
    first = html[: html.index("What σ means")]
    for value in (m.sensitivity.sigma.median(), m.reach[m.right].median(), m.bound.value):
        assert f">{number(float(value))}<" in first
    assert f"{100 * float(m.right.double().mean()):.1f}".removesuffix(".0") + " %" in first
    assert str(m.attack.count) in first


@pytest.mark.parametrize("kind", ["images", "table", "text"])
def test_all_parts_are_there(cards, kind):
    html = cards[kind]
    for head in ("What σ means", "How it is spread", "σ, correctness and margin", "Under noise and attack"):
        assert f"<h2>{head}</h2>" in html
    assert "What to beware of" in html
    assert "jn.card(model, x, y" in html
    assert "torch" in html[html.index("how to rerun") :]
    assert "http" not in html.replace("http://www.w3.org", "")


def test_what_to_beware_of(cards):
    """J begins at the embedding. So it is no finding that the weights before it are unused."""
    assert "play no part" not in cards["text"]
    assert "known only to ±" in cards["images"]  # with eight images
    assert "A changed token may change the meaning of a text" in cards["text"]


def test_directions_are_shown_as_what_they_are(cards):
    assert cards["images"].count('src="data:image/png') == 2 * 2 * 6
    assert "alcohol" in cards["table"]
    assert "&lt;barbera&gt;" in cards["table"]  # names are shown as text, not as markup
    assert "<barbera>" not in cards["table"]
    assert 'class="tokens"' in cards["text"]
    shown = cards["text"][cards["text"].index('class="tokens"') :]
    assert "&lt;pad&gt;" not in shown


def test_the_model_is_left_in_its_mode(text, tmp_path):
    text.model.train()
    text.model.head.eval()
    jn.card(text.model, text.x, text.y, tmp_path / "card.html", attacked=2)
    assert text.model.training
    assert text.model.layers.training
    assert not text.model.head.training
    assert all(p.grad is None for p in text.model.parameters())


def test_samples_to_attack_are_spread_over_all():
    assert chosen(10, 4).tolist() == [0, 3, 6, 9]
    assert chosen(3, 10).tolist() == [0, 1, 2]


# ---- Mistakes ---------------------------------------------------------------------------------------

X, Y = torch.rand(12, 4), torch.arange(12) % 3
NET = partial(nn.Linear, 4, 3)


class Two(nn.Module):
    def forward(self, x):
        return {"first": x, "second": 2 * x}


class Undefined(nn.Module):
    """Its output is NaN from the eighth sample of a batch on."""

    def forward(self, x):
        return torch.where(torch.arange(len(x))[:, None] < 7, x, torch.nan)


@pytest.mark.parametrize(
    ("model", "x", "y", "how", "message"),
    [
        (torch.sum, X, Y, {}, "the model is a builtin_function_or_method: a card needs an nn.Module"),
        (NET(), X, Y[:5], {}, "x has 12 samples and y 5 labels"),
        (NET(), X[:0], Y[:0], {}, "x has 0 samples"),
        (NET(), X, Y.float(), {}, r"labels are torch.float32 of shape \(12,\)"),
        (NET(), X, Y + 1, {}, "label 3 of sample 2 is not one of the model's 3 classes, 0 to 2"),
        (NET(), X, Y * 0 + 1, {}, "all 12 labels are 1: a card compares classes"),
        (
            NET(),
            X.index_fill(1, torch.tensor(2), torch.nan),
            Y,
            {},
            "NaN or inf at 12 .* sample 0, column 2$",
        ),
        (NET(), X / X[:, :1].round(), Y, {"names": "abcd"}, r"x has NaN or inf .* column \d \([abcd]\)"),
        (nn.Linear(5, 3), X, Y, {}, r"does not take x of shape \(4,\): mat1 and mat2"),
        (nn.Linear(4, 1), X, Y, {}, r"gives \(12, 1\) for 12 samples: a card needs one row of two or more"),
        (Two(), X, Y, {}, r"returned dict with 'first' of shape .* Say which: output='first'"),
        (Two(), X, Y, {"output": "secnd"}, "did you mean output='second'"),
        (Two(), X, Y, {"output": lambda out: out}, "output= gave a dict: a card needs a tensor of logits"),
        (Undefined(), X, Y, {}, "gives NaN or inf for 5 of 12 samples, first for sample 7"),
        (NET(), X[:, None], Y, {}, r"x has shape \(12, 1, 4\): a card takes images"),
        (NET(), X, Y, {"classes": ["a", "b"]}, "classes= has 2 names: 3 are needed"),
        (NET(), X, Y, {"names": ["a"]}, "names= has 1 names: 4 are needed, one for each column of x"),
        (NET(), X, Y, {"at": "embedding"}, "at= is for tokens"),
        (NET(), X, Y, {"attacked": 0}, "attacked = 0: it must be 1 or more"),
        (NET(), X, Y, {"epsilon": 0.0}, "epsilon = 0.0: it must be above 0"),
        (NET(), X, Y, {"path": "nowhere/card.html"}, "there is no folder nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(model, x, y, how, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(jn.JacnormError, match=message) as found:
        jn.card(model, x, y, **how)
    assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())


# ---- Models that return more than a tensor -----------------------------------------------------------


class Packed(nn.Module):
    """Returns its logits as Hugging Face's models do."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        scores = self.body(x)
        return {"loss": None, "logits": scores, "hidden": 3 * scores}


def sigmas(m):
    return m.sensitivity.sigma


@pytest.mark.parametrize("output", [None, "logits", 1, lambda out: out["hidden"] / 3])
def test_the_numbers_are_those_of_the_logits(output, table, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_told", {("Packed", "logits")})
    found = []
    monkeypatch.setattr(
        "jacnorm.lab.card.make.measure", lambda *a, **k: found.append(measure(*a, **k)) or found[-1]
    )
    model = Packed(table.model)
    jn.card(model, table.x, table.y, tmp_path / "card.html", attacked=4, output=output)
    jn.card(table.model, table.x, table.y, tmp_path / "plain.html", attacked=4)
    packed, plain = found
    torch.testing.assert_close(sigmas(packed), sigmas(plain), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(packed.margin, plain.margin, rtol=1e-4, atol=1e-5)
    assert packed.attack.left == plain.attack.left
    assert isinstance(model(torch.tensor(table.x).float()), dict)  # as before
    told = "<dt>output</dt><dd>logits</dd>" in (tmp_path / "card.html").read_text()
    assert told == (output is None)


def test_the_warning_points_at_this_line(table, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "_told", set())
    with pytest.warns(UserWarning, match="J is the Jacobian of 'logits'") as found:
        jn.card(Packed(table.model), table.x, table.y, tmp_path / "card.html", attacked=1)
    assert [one.filename for one in found] == [__file__]


def test_cards_of_hugging_faces_models(tmp_path, monkeypatch):
    hf = pytest.importorskip("transformers")
    monkeypatch.setattr(
        recording,
        "_told",
        {(f"{kind}Classification", "logits") for kind in ("ViTForImage", "BertForSequence")},
    )
    size = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "num_hidden_layers": 1}
    images = hf.ViTConfig(**size, image_size=8, patch_size=4, num_channels=1, num_labels=3)
    texts = hf.BertConfig(**size, vocab_size=12, max_position_embeddings=8, num_labels=3, pad_token_id=0)
    jn.card(hf.ViTForImageClassification(images), torch.rand(12, 1, 8, 8), Y, tmp_path / "a.html", attacked=2)
    tokens = torch.randint(1, 12, (12, 6))
    jn.card(hf.BertForSequenceClassification(texts), tokens, Y, tmp_path / "b.html", attacked=2)
    assert "<h1>ViTForImageClassification" in (tmp_path / "a.html").read_text()
    assert "bert.embeddings.word_embeddings" in (tmp_path / "b.html").read_text()


def test_without_the_extra(monkeypatch):
    monkeypatch.setattr("jacnorm.extras.find_spec", lambda name: None if name == "jinja2" else name)
    with pytest.raises(jn.JacnormError, match=r"A card needs jinja2: pip install 'jacnorm\[lab\]'"):
        jn.card(NET(), X, Y)


# ---- The command ------------------------------------------------------------------------------------


def test_the_command(tmp_path, capsys):
    out = tmp_path / "card.html"
    sizes = ["--images", "40", "--attacked", "2", "--epsilon", "4/255"]
    assert main(["card", "mlp", "--data", "digits", *sizes, "--out", str(out)]) == 0
    html = out.read_text()
    assert "<h1>mlp on digits</h1>" in html
    assert "40 images of digits, test split, 10 classes" in html
    assert "every pixel by up to 4/255" in html
    assert f"card: {out}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp"], "a net needs --data"),
        (["mlpp", "--data", "digits"], "there is no net 'mlpp'"),
        (["own_net:small", "--data", "digits", "--weights", "none.pt"], "none.pt: there is no such file"),
        (["mlp", "--data", "digitss"], "did you mean 'digits'"),
        (["mlp", "--data", "digits", "--images", "0"], "--images 0: it must be 1 or more"),
        (["mlp", "--data", "digits", "--out", "nowhere/card.html"], "there is no folder nowhere"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["card", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("jacnorm: error:")
