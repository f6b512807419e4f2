"""Three small classifiers with their data (images, a table, texts), and a card of each."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import jacnorm as jn
from jacnorm.lab.nets import MLP, Normalized


def trained(model, x, y, steps=120, rate=0.01):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        optimizer = torch.optim.Adam(model.parameters(), rate)
        for _ in range(steps):
            index = torch.randint(len(x), (64,))
            optimizer.zero_grad()
            cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    model.zero_grad()
    return model


def made(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


class Scaled(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x):
        return (x - self.mean) / self.std


WORDS = ("<pad>", "good", "fine", "bad", "poor", "not", "the", "film", "is", "a")
GOOD, BAD, NOT = (1, 2), (3, 4), 5


class Reader(nn.Module):
    """A transformer with two embeddings: of tokens and of positions."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 8, padding_idx=0)
        self.places = nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens):
        h = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.layers(h, src_key_padding_mask=tokens == 0)[:, 0])


def texts(count):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(6, 10, (count, 6), generator=generator)
    says = torch.randint(1, 5, (count,), generator=generator)
    negated = torch.rand(count, generator=generator) < 0.4
    x[:, 2], x[negated, 1], x[::3, 5] = says, NOT, 0
    return x, ((says <= max(GOOD)) ^ negated).long()


@pytest.fixture(scope="session")
def images(digits):
    model = made(lambda: Normalized(MLP((64, 32, 10)), digits.mean, digits.std))
    trained(model, digits.train.images, digits.train.labels)
    return SimpleNamespace(model=model, x=digits.test.images[:80], y=digits.test.labels[:80], extra={})


@pytest.fixture(scope="session")
def table():
    from sklearn.datasets import load_wine

    found = load_wine()
    x, y = torch.tensor(found.data, dtype=torch.float32), torch.tensor(found.target)
    scaled = Scaled(x.mean(0), x.std(0))
    model = made(lambda: nn.Sequential(scaled, nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3)))
    extra = {"names": list(found.feature_names), "classes": ["barolo", "grignolino", "<barbera>"]}
    return SimpleNamespace(model=trained(model, x, y), x=found.data, y=found.target, extra=extra)


@pytest.fixture(scope="session")
def text():
    x, y = texts(400)
    model = trained(made(Reader), x, y, steps=300)
    extra = {"names": WORDS, "classes": ["bad", "good"]}
    return SimpleNamespace(model=model, x=x[:60], y=y[:60], extra=extra)


@pytest.fixture(scope="session")
def cards(images, table, text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    made = {"images": images, "table": table, "text": text}
    for kind, of in made.items():
        jn.card(of.model, of.x, of.y, folder / f"{kind}.html", attacked=8, **of.extra)
    return {kind: (folder / f"{kind}.html").read_text() for kind in made}
