"""Data and nets that cannot be used. Each command says on one line what is wrong and where."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from jacnorm.lab.cli import main

OWN = """
import torch
from torch import nn

class Samples(torch.utils.data.Dataset):
    def __init__(self, make):
        self.make = make
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return self.make(i), i % 2

class Broken(nn.Linear):
    def forward(self, x):
        raise RuntimeError("first line\\nsecond line")

def two_shapes():
    return Samples(lambda i: torch.zeros(3 + (i == 5)))

def raising():
    return Samples(lambda i: {}["missing"])

def narrow():
    return nn.Linear(7, 2)

def wide():
    return nn.Linear(3, 5)

def broken():
    return Broken(3, 2)

def no_net():
    return {}["missing"]
"""


class Runs:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bad", raising=False)
    Path("bad.py").write_text(OWN)
    Path("empty").mkdir()
    for name, size in {"one": (8,), "sizes": (8, 9)}.items():
        for kind, side in zip("ab", size, strict=False):
            Path(name, kind).mkdir(parents=True)
            Image.new("L", (side, side)).save(Path(name, kind, "1.png"))
    x, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2
    table = pd.DataFrame(x, columns=list("abc")).assign(kind=y)
    table.to_csv("table.csv", index=False)
    table.mask((table.index.to_numpy() == 4)[:, None] & (table.columns == "b")).to_csv("nan.csv", index=False)
    np.savez("good.npz", x=x, y=y)
    np.savez("pickle.npz", x=np.array([Runs()] * 30), y=y)
    return tmp_path


def command(name, data, net, label=None):
    named = ["--data", data, *(["--label", label] if label else [])]
    if name == "sweep":
        base = {"data": data, "net": net, "epochs": 1, **({"label_column": label} if label else {})}
        lines = [f"{key} = {json.dumps(value)}" for key, value in base.items()]
        Path("my.toml").write_text("\n".join(["[base]", *lines, "[grid]", 'method = ["none"]']))
        return ["sweep", "my.toml"]
    how = {"train": ["--net", net], "measure": ["--net", net], "evaluate": ["--net", net]}
    return [name, *how.get(name, [net]), *named]


COMMANDS = pytest.mark.parametrize("name", ["train", "measure", "evaluate", "sweep", "doctor", "card"])


def refused(arguments, capsys):
    """The one line about the mistake. A mistake in a net is found after the data is described."""
    assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if not ("fingerprint" in line or "no --weights" in line)] == lines[-1:]
    assert not Path("executed").exists()
    assert not any(Path("runs").glob("*"))
    return lines[-1]


@COMMANDS
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("empty", "empty: there are no folders in it; images are expected in one folder per class"),
        ("one", "one: there is only one class, 'a'"),
        ("sizes", "sizes/b/1.png: it is 9×9, and sizes/a/1.png is 8×8"),
        ("table.csv#sort", "table.csv: there is no column 'sort': choose one of a, b, c, kind"),
        ("nan.csv#kind", "nan.csv: row 6 has nothing in column 'b'"),
        ("pickle.npz", "pickle.npz: the array 'x' is a pickle of Python objects, which is not opened"),
        ("bad:two_shapes", "bad:two_shapes: sample 5 has shape (4,), and sample 0 has (3,)"),
        ("bad:raising", "bad:raising: sample 0 cannot be read: KeyError: 'missing'"),
    ],
)
def test_data(name, data, message, here, capsys):
    data, _, label = data.partition("#")
    assert message in refused(command(name, data, "mlp", label), capsys)


@COMMANDS
@pytest.mark.parametrize(
    ("net", "message"),
    [
        ("bad:narrow", "the net does not take rows of shape (3,): mat1 and mat2 shapes cannot be multiplied"),
        ("bad:wide", "the net gives (2, 5) for 2 samples; (2, 2) is needed, one score per class"),
        ("bad:broken", "the net does not take rows of shape (3,): first line second line"),
        ("bad:no_net", "bad:no_net: KeyError: 'missing'; it must name a function"),
        ("lenet", "lenet takes square images, these are the rows of a table"),
    ],
)
def test_nets(name, net, message, here, capsys):
    assert message in refused(command(name, "good.npz", net), capsys)


def test_parquet_without_its_package(here, monkeypatch, capsys):
    monkeypatch.setattr("jacnorm.lab.data.tables.find_spec", lambda name: None)
    Path("table.parquet").write_bytes(b"PAR1")
    assert "need the package pyarrow: pip install pyarrow, or save a .csv" in refused(
        command("train", "table.parquet", "mlp", "kind"), capsys
    )
