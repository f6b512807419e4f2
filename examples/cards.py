"""Cards of three classifiers: of images, of a table and of texts. docs/card.md shows them.

python examples/cards.py [FOLDER]

Images: KMNIST for a network of the paper's results, if the data are there (JACNORM_DATA); else digits.
Texts: sentences from the docstrings of Python's own library.
"""

import importlib
import inspect
import re
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import jacnorm as jn

SAMPLES, ATTACKED, STEPS = 1000, 200, 600
PAPER = Path(__file__).parent.parent / "paper" / "table1-kmnist" / "results.jsonl"
LENET = "kmnist-lenet-spectral-0.01-s0-35790cac6d"
SUBJECTS = {
    "mathematics": ("math", "cmath", "statistics", "fractions", "decimal", "random", "numbers"),
    "files": ("os", "os.path", "shutil", "pathlib", "tempfile", "glob", "zipfile", "tarfile"),
    "network": (
        "socket",
        "ssl",
        "smtplib",
        "imaplib",
        "http.client",
        "urllib.request",
        "ftplib",
        "email.message",
    ),
}
WORDS, LENGTH = 1500, 12  # of the vocabulary, of a text
PAD, OTHER = "<pad>", "<other>"


def train(model, x, y, penalty, rate=0.002):
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    at = "words" if not x.is_floating_point() else None
    for _ in range(STEPS):
        index = torch.randint(len(x), (64,))
        J = jn.linearize(model, x[index], at=at)
        loss = cross_entropy(J.output, y[index]) + penalty(J, index=index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def apart(x, y):
    """Four fifths to train on, and the rest to look at."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    test, rest = order[: len(x) // 5], order[len(x) // 5 :]
    return x[rest], y[rest], x[test][:SAMPLES], y[test][:SAMPLES]


def of_the_paper():
    """A LeNet of table 1, and the images that it was not trained on; nothing where the data are not there."""
    from jacnorm.lab.data import DataError, load
    from jacnorm.lab.reproduce.networks import kept_networks, unpack
    from jacnorm.lab.run_files import load_run, read_config

    try:
        data = load("kmnist", download=False)
    except DataError:
        return None
    with TemporaryDirectory() as folder:
        unpack(kept_networks(PAPER)[LENET], LENET, Path(folder))
        config = read_config(Path(folder, LENET))
        return load_run(Path(folder, LENET), config, data), data, config


def images(path):
    found = of_the_paper()
    if found is not None:
        model, data, config = found
        x, y = data.test.images[:SAMPLES], data.test.labels[:SAMPLES]
        told = {
            "title": f"LeNet on KMNIST, spectral penalty, λ = {config.weight:g}",
            "data": "KMNIST, test split",
        }
        return jn.card(model, x, y, path, classes=data.classes, attacked=ATTACKED, rerun=RERUN, **told)
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    x, y, x_test, y_test = apart(x, torch.tensor(digits.target))
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))
    train(model, x, y, jn.SpectralPenalty(0.02))
    told = {"title": "A small CNN on digits, spectral penalty", "data": "scikit-learn's digits"}
    return jn.card(model, x_test, y_test, path, attacked=ATTACKED, rerun=RERUN, **told)


def table(path):
    cells = load_breast_cancer()
    x, y, x_test, y_test = apart(torch.tensor(cells.data, dtype=torch.float32), torch.tensor(cells.target))
    scaled = nn.BatchNorm1d(30, affine=False, momentum=None)
    scaled(x)
    model = nn.Sequential(
        scaled.eval(), nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    )
    train(model, x, y, jn.SpectralPenalty(0.02))
    told = {"title": "An MLP on the breast cancer data", "data": "scikit-learn's breast cancer data"}
    names = {"names": list(cells.feature_names), "classes": list(cells.target_names)}
    return jn.card(model, x_test, y_test, path, attacked=ATTACKED, rerun=RERUN, **names, **told)


def sentences():
    """(words, subject) of all sentences that are long enough, and of one subject."""
    found = {}
    for subject, modules in enumerate(SUBJECTS.values()):
        for module in map(importlib.import_module, modules):
            objects = [module, *(v for n, v in vars(module).items() if not n.startswith("_"))]
            objects += [v for one in objects if inspect.isclass(one) for v in vars(one).values()]
            docs = [inspect.getdoc(o) or "" for o in objects if callable(o) or inspect.ismodule(o)]
            for part in re.split(r"[.:]\s|\n\s*\n", "\n\n".join(docs)):
                words = re.findall(r"[a-z][a-z']+", part.lower())
                if len(words) >= 5:
                    found.setdefault(tuple(words[:LENGTH]), set()).add(subject)
    return sorted((words, *subjects) for words, subjects in found.items() if len(subjects) == 1)


class Reader(nn.Module):
    """The mean of what a window of three words says."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 24, padding_idx=0)
        self.window, self.head = nn.Conv1d(24, 48, 3, padding=1), nn.Linear(48, len(SUBJECTS))

    def forward(self, tokens):
        there = (tokens != 0).unsqueeze(1)
        h = torch.relu(self.window(self.words(tokens).transpose(1, 2))) * there
        return self.head(h.sum(2) / there.sum(2))


def text(path):
    found = sentences()
    counted = Counter(word for words, _ in found for word in words)
    names = [
        PAD,
        OTHER,
        *(word for word, _ in sorted(counted.items(), key=lambda p: (-p[1], p[0]))[: WORDS - 2]),
    ]
    number = {word: i for i, word in enumerate(names)}
    rows = [[number.get(word, 1) for word in words] + [0] * (LENGTH - len(words)) for words, _ in found]
    x, y, x_test, y_test = apart(torch.tensor(rows), torch.tensor([subject for _, subject in found]))
    model = train(Reader(), x, y, jn.SpectralPenalty(0.02), rate=0.005)
    told = {"title": "What is a docstring about?", "data": "Python's own library", "classes": list(SUBJECTS)}
    return jn.card(model, x_test, y_test, path, names=names, attacked=ATTACKED, rerun=RERUN, **told)


RERUN = "python examples/cards.py cards"


def main(folder="cards"):
    Path(folder).mkdir(exist_ok=True)
    for make in (images, table, text):
        torch.manual_seed(0)
        path = make(Path(folder) / f"{make.__name__}.html")
        right = re.search(r'accuracy</span><span class="big">([\d.]+) %', path.read_text())
        print(f"{path}: {right[1]} % are right, {path.stat().st_size / 1024:.0f} kB")
        assert float(right[1]) > (70 if make is text else 90)  # chance is 33, 50 and 10


if __name__ == "__main__":
    main(*sys.argv[1:])
